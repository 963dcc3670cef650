"""Pilots on hosts on which programs can be run. The hosts themselves record which pilot uses them.

A host is inspected, checked, given an agent and started; a second pilot is answered that the host is taken. Many hosts
are handled at the same time, each by one thread and for one pilot. A pilot without a host waits here, in memory, and a
thread tries again for it. A host that does not answer is assumed to keep whatever it had. A `RemoteExec` knows how to
reach hosts.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Protocol

from corral.providers.base import PilotOrder, PilotPhase, PilotStatus, ProviderRefused, ProviderUnavailable, raise_any
from corral.providers.bootstrap.bundle import AgentBundle, Interpreter, NoWheels, agent_for
from corral.providers.bootstrap.host_checks import unfit
from corral.providers.bootstrap.host_messages import (
    HostAnswer,
    HostDetails,
    HostRequest,
    LookRequest,
    PilotRecord,
    RestartRequest,
    StartRequest,
    StopRequest,
    UpgradeRequest,
)
from corral.providers.parallel_map import parallel_map
from corral.providers.remote_exec import Host, HostAway, HostUnfit, RemoteExec

_log = logging.getLogger(__name__)
_EACH_S = 0.1  # times the number of hosts: how long an answer is used, so that many hosts do not keep the server busy
_FRESH_S = 5.0  # the same when looking for a free host: the host itself decides whether it is free
_AGAIN_S = 1.0
_LOST_S = 12.0  # a host that is gone may be back before its lease and the server's margin have expired


class HostSettings(Protocol):
    """The settings of a fleet for all its hosts."""

    @property
    def wheels(self) -> str: ...
    @property
    def ca(self) -> str: ...
    @property
    def grace_ms(self) -> int: ...


class HostStatus:
    """What is known of a host: its last answer, or why there is none."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.answer: HostAnswer | None = None
        self.trouble = ""  # why it does not answer; its last answer is still used
        self.unfit = ""
        self.at_s = -1e9
        self.gone_s: float | None = None  # since when it is no longer one of the hosts

    @property
    def place(self) -> PilotRecord | None:
        return None if self.answer is None else self.answer.place

    def pilot(self, cluster: str) -> str:
        """The pilot of this cluster on the host, in whatever phase."""
        return self.place.pilot if self.place is not None and self.place.cluster == cluster else ""

    @property
    def is_free(self) -> bool:
        """As far as is known; the host itself decides."""
        if self.answer is None or self.trouble or self.unfit or self.gone_s is not None:
            return False
        place, state = self.answer.place, self.answer.state
        return place is None or (not state.is_kept and (place.is_released or state.ended is not None))


class HostProvider:
    def __init__(
        self,
        settings: HostSettings,
        cluster: str,
        remote: RemoteExec,
        agents: Callable[[Interpreter, str], AgentBundle] = agent_for,
    ) -> None:
        self._settings = settings
        self._cluster = cluster
        self._exec = remote
        self._agents = agents
        self._views: list[HostStatus] = []
        self._waiting: dict[str, PilotOrder] = {}
        self._uncertain: dict[str, HostStatus] = {}  # pilots that were to start on a host when the answer was lost
        self._lock = threading.RLock()  # held by the caller, also for the threads that work for it
        self._making = threading.Lock()  # so that an agent is built only once
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    # --- the interface ------------------------------------------------------------------------------------------------

    def acquire(self, orders: Sequence[PilotOrder]) -> None:
        with self._lock:
            self._inspect_all(_FRESH_S)
            raise_any(self._place_all(orders))

    def look(self, pilots: Sequence[str]) -> list[PilotStatus]:
        with self._lock:
            asked = [pilot for pilot in pilots if pilot not in self._waiting]
            if asked:
                self._inspect_all()
                self._maintain(asked)
            return [status for pilot in pilots if (status := self._status_of(pilot)) is not None]

    def release(self, pilot: str) -> None:
        with self._lock:
            if self._waiting.pop(pilot, None) is not None:
                return
            self._inspect_all()
            views = self._hosts_with(pilot)
            unknown = [view.trouble for view in self._views if view.trouble and view.answer is None]
            if any(view.trouble for view in views) or (not views and unknown):
                raise ProviderUnavailable("; ".join(unknown or [view.trouble for view in views]))
            for view in views:
                self._ask(view, StopRequest(pilot, self._cluster))
                if view.trouble:
                    raise ProviderUnavailable(view.trouble)

    def close(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join(60)
        self._exec.close()

    # --- hosts --------------------------------------------------------------------------------------------------------

    def _inspect_all(self, fresh_s: float = 0.0) -> None:
        """Inspect all hosts again that were not just inspected. Raises `ProviderUnavailable` if none answers."""
        self._update_hosts()
        fresh_s = max(fresh_s, _EACH_S * len(self._views))
        here = [view for view in self._views if view.gone_s is None]
        stale = [view for view in here if view.trouble or time.monotonic() - view.at_s > fresh_s]
        parallel_map(self._inspect, stale)
        if here and all(view.trouble for view in here):
            raise ProviderUnavailable("; ".join(view.trouble for view in here))

    def _inspect(self, view: HostStatus, is_met: bool = False) -> None:
        """``is_met``: the answer must come from the host itself; always so if it is believed to have a pilot."""
        has_pilot = view.place is not None and not view.place.is_released
        self._ask(view, LookRequest(), is_met or has_pilot)

    def _update_hosts(self) -> None:
        """Update the list of hosts. One with a pilot is remembered for a while, because it may come back in time."""
        hosts, now = {host.key: host for host in self._exec.hosts()}, time.monotonic()
        for view in self._views:
            host = hosts.pop(view.host.key, None)
            if host is not None and (view.gone_s is not None or host != view.host):
                view.host = host
                view.gone_s = None
                view.at_s = -1e9
            elif host is None and view.gone_s is None:
                view.gone_s = now
        self._views = [view for view in self._views if view.gone_s is None or now - view.gone_s < _LOST_S]
        self._views += [HostStatus(host) for host in hosts.values()]
        self._uncertain = {pilot: view for pilot, view in self._uncertain.items() if view in self._views}

    def _ask(self, view: HostStatus, request: HostRequest, is_met: bool = True) -> HostAnswer | None:
        return self._take(view, lambda: self._exec.ask(view.host, request, is_met))

    def _take(self, view: HostStatus, ask: Callable[[], HostAnswer]) -> HostAnswer | None:
        """Store and return the answer of a host. None: it did not answer, or cannot be used."""
        began_ms = time.time_ns() // 1_000_000
        try:
            answer = ask()
        except HostAway as away:
            view.trouble = str(away)
            return None
        except HostUnfit as wrong:
            view.trouble = ""
            view.unfit = str(wrong)
            view.at_s = time.monotonic()
            return None
        view.answer = answer
        view.trouble = ""
        view.at_s = time.monotonic()
        view.unfit = unfit(view.host, answer, began_ms, time.time_ns() // 1_000_000)
        return answer

    def _hosts_with(self, pilot: str) -> list[HostStatus]:
        found = [view for view in self._views if view.pilot(self._cluster) == pilot]
        uncertain = self._uncertain.get(pilot)
        return [uncertain] if not found and uncertain is not None and uncertain.trouble else found

    # --- starting -----------------------------------------------------------------------------------------------------

    def _place_all(self, orders: Iterable[PilotOrder]) -> list[ProviderUnavailable | ProviderRefused]:
        """Start each pilot on its own host, in parallel; those without a host wait. Returns the faults of the rest."""
        each = {order.pilot: order for order in orders}
        here = {pilot: self._hosts_with(pilot) for pilot in each}
        free = SimpleQueue[HostStatus]()
        for view in self._views:
            if view.is_free and not any(view in views for views in here.values()):
                free.put(view)
        ends = parallel_map(lambda order: self._start_somewhere(order, here[order.pilot], free), each.values())
        faults: list[ProviderUnavailable | ProviderRefused] = [
            end for end in ends if isinstance(end, ProviderUnavailable)
        ]
        left = {pilot: order for (pilot, order), end in zip(each.items(), ends, strict=True) if end is False}
        for pilot in [pilot for pilot, end in zip(each, ends, strict=True) if end is True]:
            self._waiting.pop(pilot, None)
        if left and self._views and all(view.unfit for view in self._views):
            why = "; ".join(view.unfit for view in self._views)
            faults.append(ProviderRefused(f"no host can be used: {why}"))
        elif left:
            self._waiting |= left
            self._start_retrying()
        return faults

    def _start_somewhere(
        self, order: PilotOrder, here: Sequence[HostStatus], free: SimpleQueue[HostStatus]
    ) -> bool | ProviderUnavailable:
        """Whether the pilot has a host now, or why that is unknown. Runs in parallel for several pilots. Only one of
        them handles a view, because a view that was taken out of ``free`` is not put back."""
        lost = [view for view in here if view.trouble or view.gone_s is not None]
        if lost:
            return ProviderUnavailable(lost[0].trouble or f"{lost[0].host} is not reachable at present")
        if not here:
            self._uncertain.pop(order.pilot, None)  # it is not where it might have been
        for view in here or _drain(free):
            try:
                if self._start_on(view, order):
                    self._uncertain.pop(order.pilot, None)
                    return True
            except ProviderUnavailable as away:
                return away
        lost = [view for view in here if view.trouble]
        return ProviderUnavailable(lost[0].trouble) if lost else False

    def _start_on(self, view: HostStatus, order: PilotOrder) -> bool:
        """Whether the pilot is on the host now. Raises `ProviderUnavailable` if the answer is lost: then this is
        unknown, and it must not start elsewhere. If the host is lost earlier, the pilot is not there."""
        agent = self._installed(view)
        if agent is None:
            return False
        self._uncertain[order.pilot] = view  # no other thread writes to this key
        answer = self._ask(view, StartRequest(self._record(view, order, agent), self._exec.is_keeping))
        if view.trouble:
            raise ProviderUnavailable(view.trouble)
        return answer is not None and not answer.is_taken and not answer.is_bare

    def _installed(self, view: HostStatus) -> str | None:
        """The agent that the host has now. None: it cannot have one, or this is unknown; its view says why."""
        details = self._inspected(view)
        if details is None or view.answer is None:
            return None
        try:
            agent = self._agent_for(details)
        except NoWheels as missing:
            view.unfit = f"{view.host}: {missing}"
            return None
        if agent.mark not in view.answer.agents:
            self._take(view, lambda: self._exec.install(view.host, agent))
        return None if view.trouble or view.unfit else agent.mark

    def _inspected(self, view: HostStatus) -> HostDetails | None:
        """What the host reports about itself. None: it is unfit, or does not answer."""
        if view.answer is None or view.answer.details is None:
            self._inspect(view, is_met=True)
        return None if view.trouble or view.unfit or view.answer is None else view.answer.details

    def _agent_for(self, details: HostDetails) -> AgentBundle:
        interpreter = Interpreter(details.python[:2], details.machine, details.libc)
        with self._making:
            return self._agents(interpreter, self._settings.wheels)

    def _record(self, view: HostStatus, order: PilotOrder, agent: str) -> PilotRecord:
        """The record for the host: how to run its agent."""
        words = [f"--server={url}" for url in order.urls]
        words += [f"--name={order.pilot}", f"--grace={self._settings.grace_ms}ms"]
        words += [f"--path={view.host.path}"] if view.host.path else []
        words += [f"--fake-gpus={view.host.fake_gpus}"] if view.host.fake_gpus else []
        words += [f"--ca={order.cafile}"] if order.cafile and not self._settings.ca else []
        return PilotRecord(
            pilot=order.pilot,
            cluster=self._cluster,
            agent=agent,
            at_ms=time.time_ns() // 1_000_000,
            is_kept=self._exec.is_keeping,
            token=order.token,
            words=tuple(words),
            ca=self._settings.ca,
            grace_ms=self._settings.grace_ms,
        )

    # --- while they run -----------------------------------------------------------------------------------------------

    def _maintain(self, pilots: Sequence[str]) -> None:
        """Restart the agent on a host that was rebooted, or whose supervisor was killed. Upgrade agents of another
        version than the server, one host at a time. Of two hosts with the same pilot, keep the later one."""
        upgraded = False
        for pilot in pilots:
            views = [view for view in self._hosts_with(pilot) if not view.trouble and view.gone_s is None]
            for view in sorted(views, key=_began_ms)[:-1]:
                _log.warning("pilot %s runs on two hosts; ending it on %s", pilot, view.host)
                self._ask(view, StopRequest(pilot, self._cluster))
            for view in views:
                if not upgraded and self._is_running(view):
                    upgraded = self._upgraded(view, pilot)

    def _is_running(self, view: HostStatus) -> bool:
        assert view.answer is not None
        place, state = view.answer.place, view.answer.state
        if place is None or state.ended is not None:
            return False
        if not state.is_kept and place.is_released:
            self._ask(view, StopRequest(place.pilot, self._cluster))
        elif not state.is_kept:
            self._ask(view, RestartRequest(place.pilot, self._cluster, self._exec.is_keeping))
        return not view.trouble and not place.is_released

    def _upgraded(self, view: HostStatus, pilot: str) -> bool:
        """Whether its agent had another version. A failed upgrade does not end the pilot; tasks are not affected."""
        details = None if view.answer is None else view.answer.details
        if view.place is None or details is None:
            return False
        before = view.place.agent
        try:
            agent = self._agent_for(details)
        except NoWheels as missing:
            _log.warning("agent on %s not upgraded: %s", view.host, missing)
            return True
        if before == agent.mark:
            return False
        if self._installed(view):
            self._ask(view, UpgradeRequest(pilot, self._cluster, agent.mark))
        else:
            _log.warning("agent on %s not upgraded: %s", view.host, view.trouble or view.unfit)
        return True

    def _status_of(self, pilot: str) -> PilotStatus | None:
        if pilot in self._waiting:
            return PilotStatus(pilot=pilot, phase=PilotPhase.WAITING, why=self._why_waiting())
        views = self._hosts_with(pilot)
        if not views:
            away = [view for view in self._views if view.trouble and view.answer is None]
            if not away:
                return None
            why = f"it may be on a host that does not answer: {away[0].trouble}"
            return PilotStatus(pilot=pilot, phase=PilotPhase.STARTED, where=str(away[0].host), why=why)
        view = views[-1]
        ended = None if view.answer is None else view.answer.state.ended
        if ended is not None:
            return PilotStatus(pilot=pilot, phase=PilotPhase.ENDED, where=str(view.host), why=ended.why)
        if view.gone_s is not None:
            why = "its host is not reachable at present"
            return PilotStatus(pilot=pilot, phase=PilotPhase.STARTED, where=str(view.host), why=why)
        is_leaving = view.place is not None and view.place.is_released
        caveat = "" if view.answer is None else view.answer.caveat
        why = view.trouble or ("leaving" if is_leaving else caveat)
        return PilotStatus(pilot=pilot, phase=PilotPhase.STARTED, where=str(view.host), why=why)

    # --- waiting ------------------------------------------------------------------------------------------------------

    def _why_waiting(self) -> str:
        troubles = [view.unfit or view.trouble for view in self._views if view.unfit or view.trouble]
        return "; ".join(["no host is free", *troubles])

    def _start_retrying(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._retry_waiting, name="pilots-waiting", daemon=True)
            self._thread.start()

    def _retry_waiting(self) -> None:
        while not self._over.wait(_AGAIN_S):
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                try:
                    self._inspect_all()
                    raise_any(self._place_all(self._waiting.values()))
                except (ProviderUnavailable, ProviderRefused) as lost:
                    _log.info("%s", lost)


def _drain(free: SimpleQueue[HostStatus]) -> Iterator[HostStatus]:
    """Take one after another, until none is left."""
    with suppress(Empty):
        while True:
            yield free.get_nowait()


def _began_ms(view: HostStatus) -> int:
    return 0 if view.place is None else view.place.at_ms
