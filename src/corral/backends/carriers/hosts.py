"""Pilots on hosts that can be asked to do things. Which pilot has which host is written on the hosts themselves.

A host is looked at, found fit or not, given an agent, and told to begin; whoever comes second is told that it is taken.
A pilot that finds no host waits here, in memory, and a thread tries again for it. A host that does not answer keeps, as
far as anybody knows, whatever it had. How hosts are reached is the business of a `Shell`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from corral.backends.carriers.base import CarrierAway, CarrierRefused, PilotOrder, PilotPhase, Sighting
from corral.backends.carriers.checks import unfit
from corral.backends.carriers.wheels import Agent, Interpreter, NoWheels, agent_for

_log = logging.getLogger(__name__)
_AT_ONCE = 16
_EACH_S = 0.1  # for every host there is: so long an answer is good, lest many hosts keep the server busy with greetings
_FRESH_S = 5.0  # for finding a host: whether it is free is decided there
_AGAIN_S = 1.0
_LOST_S = 12.0  # a host that is gone may be back before its lease and the server's margin are over


class HostAway(Exception):
    """Nobody knows whether it was done. Why, and what to do where something can be done."""


class HostUnfit(Exception):
    """The host has answered, and nothing can be done there. Why, and what to do."""


class Host(Protocol):
    """A machine. ``key`` stays the same for as long as it is this one; ``str`` says it in words. ``path``: where it
    stands, a name for each level of the topology."""

    @property
    def key(self) -> str: ...
    @property
    def python(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def fake_gpus(self) -> str: ...


class Shell(Protocol):
    """How ``onsite`` is run on a host. All but `hosts` raise `HostAway` and `HostUnfit`."""

    #: whether it sees to it itself that a keeper runs
    is_keeping: bool

    def hosts(self) -> Sequence[Host]:
        """Those that there are. Raises `CarrierAway`."""
        ...

    def ask(self, host: Any, act: str, **request: Any) -> dict[str, Any]:
        """A look without ``is_met`` at a host where nothing of ours is may be answered without asking it: its
        interpreter and the like are not told then. ``caveat`` in an answer: what people should know of the host."""
        ...

    def install(self, host: Any, agent: Agent) -> dict[str, Any]: ...

    def close(self) -> None: ...


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
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    # --- what is asked of it ------------------------------------------------------------------------------------------

    def acquire(self, order: PilotOrder) -> None:
        with self._lock:
            self._look_at_all(_FRESH_S)
            if not self._placed(order):
                self._waiting[order.pilot] = order
                self._see_to_waiting()

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
        with ThreadPoolExecutor(min(_AT_ONCE, max(len(stale), 1))) as pool:
            list(pool.map(self._look_at, stale))
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

    def _placed(self, order: PilotOrder) -> bool:
        """Whether it has a host now. Raises `CarrierAway` where nobody knows, `CarrierRefused` where none will do."""
        here = self._having(order.pilot)
        if any(view.trouble or view.gone_s is not None for view in here):
            raise CarrierAway(here[0].trouble or f"{here[0].host} is not there at present")
        for view in here or [view for view in self._views if view.is_free]:
            if self._began(view, order):
                self._perhaps.pop(order.pilot, None)
                return True
        if self._views and all(view.unfit for view in self._views):
            raise CarrierRefused("no host can be used: " + "; ".join(view.unfit for view in self._views))
        return False

    def _began(self, view: View, order: PilotOrder) -> bool:
        """Whether the pilot is there now. Where the answer is lost nobody knows, and it is asked for again."""
        agent = self._installed(view)
        if agent is None:
            return False
        self._perhaps[order.pilot] = view
        said = self._ask(view, "start", order=self._place(view, order, agent), is_kept=self._shell.is_keeping)
        if view.trouble:
            raise CarrierAway(view.trouble)
        return bool(said) and not said.get("is_taken") and not said.get("is_bare")

    def _installed(self, view: View) -> str | None:
        """The agent that the host has now; None: it cannot have one, which its view explains."""
        answer = self._met(view)
        if answer is None:
            return None
        try:
            agent = self._agents(_interpreter(answer), self._terms.wheels)
        except NoWheels as missing:
            view.unfit = f"{view.host}: {missing}"
            return None
        if agent.mark not in answer["agents"]:
            self._take(view, lambda: self._shell.install(view.host, agent))
            if view.trouble:
                raise CarrierAway(view.trouble)
        return None if view.unfit else agent.mark

    def _met(self, view: View) -> dict[str, Any] | None:
        """What the host itself tells of itself; None: it is unfit."""
        if view.answer is None or "python" not in view.answer:
            self._look_at(view, is_met=True)
        if view.trouble:
            raise CarrierAway(view.trouble)
        return None if view.unfit else view.answer

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
        try:
            assert view.answer is not None
            agent = self._agents(_interpreter(view.answer), self._terms.wheels)
            if view.answer["place"]["agent"] == agent.mark:
                return False
            if self._installed(view):
                self._ask(view, "renew", pilot=pilot, cluster=self._cluster, agent=agent.mark)
        except (NoWheels, CarrierAway) as hindered:
            _log.warning("%s keeps its old agent: %s", view.host, hindered)
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
                    pilot, order = next(iter(self._waiting.items()))
                    if self._placed(order):
                        del self._waiting[pilot]
                except (CarrierAway, CarrierRefused) as lost:
                    _log.info("%s", lost)


def _interpreter(answer: dict[str, Any]) -> Interpreter:
    return Interpreter((answer["python"][0], answer["python"][1]), answer["machine"], answer["libc"])


def _began_ms(view: View) -> int:
    place = view.answer and view.answer["place"]
    return int(place["at_ms"]) if place else 0
