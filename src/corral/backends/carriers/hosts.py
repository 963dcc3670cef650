"""Pilots on hosts that can be asked to do things. Which pilot has which host is written on the hosts themselves.

A host is looked at, found fit or not, given an agent, and told to begin; whoever comes second is told that it is taken.
Many hosts are seen to at the same time, each by one thread and for one pilot. A pilot that finds no host waits here, in
memory, and a thread tries again for it. A host that does not answer keeps, as far as anybody knows, whatever it had.
How hosts are reached is the business of a `Shell`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from corral.backends.carriers.abreast import abreast
from corral.backends.carriers.base import CarrierAway, CarrierRefused, PilotOrder, PilotPhase, Sighting, raise_any
from corral.backends.carriers.checks import unfit
from corral.backends.carriers.shells import Host, HostAway, HostUnfit, Shell
from corral.backends.carriers.wheels import Agent, Interpreter, NoWheels, agent_for

_log = logging.getLogger(__name__)
_EACH_S = 0.1  # for every host there is: so long an answer is good, lest many hosts keep the server busy with greetings
_FRESH_S = 5.0  # for finding a host: whether it is free is decided there
_AGAIN_S = 1.0
_LOST_S = 12.0  # a host that is gone may be back before its lease and the server's margin are over


class Terms(Protocol):
    """What a fleet says of all its hosts."""

    @property
    def wheels(self) -> str: ...
    @property
    def ca(self) -> str: ...
    @property
    def grace_ms(self) -> int: ...


class View:
    """What is known of a host: its last answer, and why there is none."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.answer: dict[str, Any] | None = None
        self.trouble = ""  # it does not answer; what it said before still stands
        self.unfit = ""
        self.at_s = -1e9
        self.gone_s: float | None = None  # since when it is not among the hosts any more

    def pilot(self, cluster: str) -> str:
        """Ours that is there, in whatever phase."""
        place = self.answer and self.answer["place"]
        return str(place["pilot"]) if place and place["cluster"] == cluster else ""

    @property
    def is_free(self) -> bool:
        """As far as is known; the host itself knows better."""
        if self.answer is None or self.trouble or self.unfit or self.gone_s is not None:
            return False
        place, state = self.answer["place"], self.answer["state"]
        return not place or (not state["is_kept"] and bool(place["is_released"] or state["ended"]))


class HostCarrier:
    def __init__(
        self,
        terms: Terms,
        cluster: str,
        shell: Shell,
        agents: Callable[[Interpreter, str], Agent] = agent_for,
    ) -> None:
        self._terms, self._cluster, self._shell, self._agents = terms, cluster, shell, agents
        self._views: list[View] = []
        self._waiting: dict[str, PilotOrder] = {}
        self._perhaps: dict[str, View] = {}  # pilots that were to begin somewhere when the answer was lost
        self._lock = threading.RLock()  # held by whoever asks, also for the threads that work for them
        self._making = threading.Lock()  # an agent is made once, for all who want it at the same time
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    # --- what is asked of it ------------------------------------------------------------------------------------------

    def acquire(self, orders: Sequence[PilotOrder]) -> None:
        with self._lock:
            self._look_at_all(_FRESH_S)
            raise_any(self._place_all(orders))

    def look(self, pilots: Sequence[str]) -> list[Sighting]:
        with self._lock:
            asked = [pilot for pilot in pilots if pilot not in self._waiting]
            if asked:
                self._look_at_all()
                self._keep_going(asked)
            return [sighting for pilot in pilots if (sighting := self._sighting(pilot)) is not None]

    def release(self, pilot: str) -> None:
        with self._lock:
            if self._waiting.pop(pilot, None) is not None:
                return
            self._look_at_all()
            views = self._having(pilot)
            unknown = [view.trouble for view in self._views if view.trouble and view.answer is None]
            if any(view.trouble for view in views) or (not views and unknown):
                raise CarrierAway("; ".join(unknown or [view.trouble for view in views]))
            for view in views:
                self._ask(view, "stop", pilot=pilot, cluster=self._cluster)
                if view.trouble:
                    raise CarrierAway(view.trouble)

    def close(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join(60)
        self._shell.close()

    # --- hosts --------------------------------------------------------------------------------------------------------

    def _look_at_all(self, fresh_s: float = 0.0) -> None:
        """All hosts anew, but those that have just been seen. Raises `CarrierAway` where nobody answers."""
        self._know_hosts()
        fresh_s = max(fresh_s, _EACH_S * len(self._views))
        here = [view for view in self._views if view.gone_s is None]
        stale = [view for view in here if view.trouble or time.monotonic() - view.at_s > fresh_s]
        abreast(self._look_at, stale)
        if here and all(view.trouble for view in here):
            raise CarrierAway("; ".join(view.trouble for view in here))

    def _look_at(self, view: View, is_met: bool = False) -> None:
        """``is_met``: an answer must come from the host itself. So it must where something is believed to be there."""
        place = view.answer and view.answer["place"]
        self._ask(view, "look", is_met=is_met or bool(place and not place["is_released"]))

    def _know_hosts(self) -> None:
        """Hosts may come and go. One that has a pilot is remembered for a while: it may come back in time."""
        hosts, now = {host.key: host for host in self._shell.hosts()}, time.monotonic()
        for view in self._views:
            host = hosts.pop(view.host.key, None)
            if host is not None and (view.gone_s is not None or host != view.host):
                view.host, view.gone_s, view.at_s = host, None, -1e9
            elif host is None and view.gone_s is None:
                view.gone_s = now
        self._views = [view for view in self._views if view.gone_s is None or now - view.gone_s < _LOST_S]
        self._views += [View(host) for host in hosts.values()]
        self._perhaps = {pilot: view for pilot, view in self._perhaps.items() if view in self._views}

    def _ask(self, view: View, act: str, **request: Any) -> dict[str, Any]:
        return self._take(view, lambda: self._shell.ask(view.host, act, **request))

    def _take(self, view: View, ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What a host answers, remembered; empty: it did not."""
        began_ms = time.time_ns() // 1_000_000
        try:
            answer = ask()
        except HostAway as away:
            view.trouble = str(away)
            return {}
        except HostUnfit as wrong:
            view.trouble, view.unfit, view.at_s = "", str(wrong), time.monotonic()
            return {}
        view.answer, view.trouble, view.at_s = answer, "", time.monotonic()
        is_told = "python" in answer
        view.unfit = unfit(view.host, answer, began_ms, time.time_ns() // 1_000_000) if is_told else ""
        return answer

    def _having(self, pilot: str) -> list[View]:
        found = [view for view in self._views if view.pilot(self._cluster) == pilot]
        perhaps = self._perhaps.get(pilot)
        return [perhaps] if not found and perhaps is not None and perhaps.trouble else found

    # --- beginning ----------------------------------------------------------------------------------------------------

    def _place_all(self, orders: Iterable[PilotOrder]) -> list[CarrierAway | CarrierRefused]:
        """Each on a host of its own, hosts at the same time; those for whom none is left wait. What is wrong with the
        others."""
        each = {order.pilot: order for order in orders}
        here = {pilot: self._having(pilot) for pilot in each}
        free = SimpleQueue[View]()
        for view in self._views:
            if view.is_free and not any(view in views for views in here.values()):
                free.put(view)
        ends = abreast(lambda order: self._placed(order, here[order.pilot], free), each.values())
        faults: list[CarrierAway | CarrierRefused] = [end for end in ends if isinstance(end, CarrierAway)]
        left = {pilot: order for (pilot, order), end in zip(each.items(), ends, strict=True) if end is False}
        for pilot in [pilot for pilot, end in zip(each, ends, strict=True) if end is True]:
            self._waiting.pop(pilot, None)
        if left and self._views and all(view.unfit for view in self._views):
            why = "; ".join(view.unfit for view in self._views)
            faults.append(CarrierRefused(f"no host can be used: {why}"))
        elif left:
            self._waiting |= left
            self._see_to_waiting()
        return faults

    def _placed(self, order: PilotOrder, here: Sequence[View], free: SimpleQueue[View]) -> bool | CarrierAway:
        """Whether it has a host now, or why nobody knows. Runs beside those of other pilots: a view is in the hands of
        one of them only, because whoever takes it out of ``free`` does not put it back."""
        lost = [view for view in here if view.trouble or view.gone_s is not None]
        if lost:
            return CarrierAway(lost[0].trouble or f"{lost[0].host} is not there at present")
        if not here:
            self._perhaps.pop(order.pilot, None)  # where it might have been, it is not
        for view in here or _taken_from(free):
            try:
                if self._began(view, order):
                    self._perhaps.pop(order.pilot, None)
                    return True
            except CarrierAway as away:
                return away
        lost = [view for view in here if view.trouble]
        return CarrierAway(lost[0].trouble) if lost else False

    def _began(self, view: View, order: PilotOrder) -> bool:
        """Whether the pilot is there now. Raises `CarrierAway` where the answer is lost: then nobody knows, and it must
        begin nowhere else. A host that is lost before is one where it is not."""
        agent = self._installed(view)
        if agent is None:
            return False
        self._perhaps[order.pilot] = view  # nobody else writes under this name meanwhile
        said = self._ask(view, "start", order=self._place(view, order, agent), is_kept=self._shell.is_keeping)
        if view.trouble:
            raise CarrierAway(view.trouble)
        return bool(said) and not said.get("is_taken") and not said.get("is_bare")

    def _installed(self, view: View) -> str | None:
        """The agent that the host has now; None: it cannot have one, or nobody knows, which its view explains."""
        answer = self._met(view)
        if answer is None:
            return None
        try:
            agent = self._agent_for(answer)
        except NoWheels as missing:
            view.unfit = f"{view.host}: {missing}"
            return None
        if agent.mark not in answer["agents"]:
            self._take(view, lambda: self._shell.install(view.host, agent))
        return None if view.trouble or view.unfit else agent.mark

    def _met(self, view: View) -> dict[str, Any] | None:
        """What the host itself tells of itself; None: it is unfit, or does not answer."""
        if view.answer is None or "python" not in view.answer:
            self._look_at(view, is_met=True)
        return None if view.trouble or view.unfit else view.answer

    def _agent_for(self, answer: dict[str, Any]) -> Agent:
        with self._making:
            return self._agents(_interpreter(answer), self._terms.wheels)

    def _place(self, view: View, order: PilotOrder, agent: str) -> dict[str, Any]:
        """What lies on the host: how its agent is to be run."""
        words = [f"--server={url}" for url in order.urls]
        words += [f"--name={order.pilot}", f"--grace={self._terms.grace_ms}ms"]
        words += [f"--path={view.host.path}"] if view.host.path else []
        words += [f"--fake-gpus={view.host.fake_gpus}"] if view.host.fake_gpus else []
        words += [f"--ca={order.cafile}"] if order.cafile and not self._terms.ca else []
        return {
            "pilot": order.pilot, "cluster": self._cluster, "agent": agent, "token": order.token, "words": words,
            "ca": self._terms.ca, "grace_ms": self._terms.grace_ms, "is_released": False,
            "is_kept": self._shell.is_keeping, "at_ms": time.time_ns() // 1_000_000,
        }  # fmt: skip

    # --- what goes on -------------------------------------------------------------------------------------------------

    def _keep_going(self, pilots: Sequence[str]) -> None:
        """A host that was started anew, or whose keeper was killed, begins again; a server of another version than its
        agents brings its own, one host at a time; of two hosts with the same pilot the later one stays."""
        renewed = False
        for pilot in pilots:
            views = [view for view in self._having(pilot) if not view.trouble and view.gone_s is None]
            for view in sorted(views, key=_began_ms)[:-1]:
                _log.warning("%s runs on %s and on another host; it ends here", pilot, view.host)
                self._ask(view, "stop", pilot=pilot, cluster=self._cluster)
            for view in views:
                if not renewed and self._is_running(view):
                    renewed = self._renewed(view, pilot)

    def _is_running(self, view: View) -> bool:
        assert view.answer is not None
        place, state = view.answer["place"], view.answer["state"]
        if not place or state["ended"]:
            return False
        if not state["is_kept"]:
            act = "stop" if place["is_released"] else "begin"
            self._ask(view, act, pilot=place["pilot"], cluster=self._cluster, is_kept=self._shell.is_keeping)
        return not view.trouble and not place["is_released"]

    def _renewed(self, view: View, pilot: str) -> bool:
        """Whether its agent was another; tasks do not notice. What hinders that is no reason to let the pilot go."""
        assert view.answer is not None
        try:
            agent = self._agent_for(view.answer)
        except NoWheels as missing:
            _log.warning("%s keeps its old agent: %s", view.host, missing)
            return True
        if view.answer["place"]["agent"] == agent.mark:
            return False
        if self._installed(view):
            self._ask(view, "renew", pilot=pilot, cluster=self._cluster, agent=agent.mark)
        else:
            _log.warning("%s keeps its old agent: %s", view.host, view.trouble or view.unfit)
        return True

    def _sighting(self, pilot: str) -> Sighting | None:
        if pilot in self._waiting:
            return Sighting(pilot=pilot, phase=PilotPhase.WAITING, why=self._why_waiting())
        views = self._having(pilot)
        if not views:
            away = [view for view in self._views if view.trouble and view.answer is None]
            if not away:
                return None
            why = f"it may be on a host that does not answer: {away[0].trouble}"
            return Sighting(pilot=pilot, phase=PilotPhase.STARTED, where=str(away[0].host), why=why)
        view = views[-1]
        ended = view.answer["state"]["ended"] if view.answer is not None else None
        if ended:
            return Sighting(pilot=pilot, phase=PilotPhase.ENDED, where=str(view.host), why=ended["why"])
        if view.gone_s is not None:
            why = "its host is not there at present"
            return Sighting(pilot=pilot, phase=PilotPhase.STARTED, where=str(view.host), why=why)
        is_leaving = view.answer is not None and view.answer["place"]["is_released"]
        why = view.trouble or ("it leaves" if is_leaving else (view.answer or {}).get("caveat", ""))
        return Sighting(pilot=pilot, phase=PilotPhase.STARTED, where=str(view.host), why=why)

    # --- waiting ------------------------------------------------------------------------------------------------------

    def _why_waiting(self) -> str:
        troubles = [view.unfit or view.trouble for view in self._views if view.unfit or view.trouble]
        return "; ".join(["no host is free", *troubles])

    def _see_to_waiting(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._serve_waiting, name="pilots-waiting", daemon=True)
            self._thread.start()

    def _serve_waiting(self) -> None:
        while not self._over.wait(_AGAIN_S):
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                try:
                    self._look_at_all()
                    raise_any(self._place_all(self._waiting.values()))
                except (CarrierAway, CarrierRefused) as lost:
                    _log.info("%s", lost)


def _taken_from(free: SimpleQueue[View]) -> Iterator[View]:
    """One after another, until none is left."""
    with suppress(Empty):
        while True:
            yield free.get_nowait()


def _interpreter(answer: dict[str, Any]) -> Interpreter:
    return Interpreter((answer["python"][0], answer["python"][1]), answer["machine"], answer["libc"])


def _began_ms(view: View) -> int:
    place = view.answer and view.answer["place"]
    return int(place["at_ms"]) if place else 0
