"""What has no other turn in a plan, and by which verdict: gangs, entries, demands of a bucket, demands of all buckets.

A demand that does not fit is closed once for all gangs, so a cycle costs what can start, not what waits. What is closed
here is also the record of why gangs wait: each closure has the verdict that was passed when it was made. Knows neither
the order of gangs nor how verdicts are reached.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeVar

from corral.core.cluster.resources import Demand, SizeClass, least_gpu_milli
from corral.core.model import NEVER_MS, Gang
from corral.core.plan import NoSeats, PartKept, Verdict
from corral.core.queues.backlog import BacklogEntry, Bucket
from corral.core.queues.quota import ROOT, Shortfall
from corral.core.snapshot import Draft
from corral.policy.backfill.pools import Pool, Pools
from corral.policy.preemption.preemptor import Preemptor

#: Runs that are expected to take this long or longer are closed; and why.
Closed = tuple[int, Verdict]

_OPEN: Closed = (NEVER_MS, NoSeats.NONE_FREE)

#: Priority and queue of a bucket, and a demand in it.
_InBucket = tuple[int, str, Demand]

_Key = TypeVar("_Key", Demand, _InBucket)


class Closures:
    """What is closed in one draft.

    Buckets that may preempt are handled one by one. All other buckets are alike: what does not fit for one of them fits
    for none, so it is closed for all at once.
    """

    def __init__(self, draft: Draft, room: Preemptor) -> None:
        self._draft = draft
        self._backlog = draft.state.backlog
        self._default_ms = draft.state.settings.default_expected_ms
        self._room = room
        self.gangs: dict[str, Closed] = {}
        self._entries: dict[BacklogEntry, Closed] = {}
        self._in_bucket: dict[_InBucket, Closed] = {}
        self._demands: dict[Demand, Closed] = {}  # in all buckets that may not preempt
        self._long_runs: dict[Demand, Closed] = {}  # the same, for long runs only
        #: classes of demands that have neither room nor a gang to preempt: with priority and queue for one bucket, and
        #: without these for all buckets that may not preempt
        self._classes: dict[tuple[int, str, SizeClass] | SizeClass, Closed] = {}
        self._shut: set[Demand] = set()  # demands that are closed by themselves or by their class, as these two say
        self._everywhere: dict[Demand, Closed] = {}  # in all buckets, for gangs that avoid no node
        self._rest: Verdict | None = None  # on all that had no turn
        #: queue -> closed because of a bound of that queue
        self._for_quota: dict[str, list[str | BacklogEntry | _InBucket]] = {}
        #: queue -> run time and GPUs (in thousandths) from which its gangs have no turn as owners
        self._demoted: dict[str, tuple[int, int]] = {}
        self.changes = Changes()

    # ---- what is closed ----------------------------------------------------------------------------------------

    def why(self, gang: Gang) -> Verdict | None:
        """The verdict by which a gang is closed: the most specific one."""
        at, demand = (gang.priority, gang.queue), gang.demand
        kind, entry = self._backlog.class_of[demand], self._backlog.entry(gang)
        expected = self._expected_ms(entry)
        closed = (
            self.gangs.get(gang.id),
            self._entries.get(entry),
            self._in_bucket.get((*at, demand)),
            self._classes.get((*at, kind)),
            self._everywhere.get(demand),
            self._demands.get(demand),
            self._long_runs.get(demand),
            self._classes.get(kind),
        )
        return next((each[1] for each in closed if each is not None and expected >= each[0]), self._rest)

    def is_all(self) -> bool:
        """Whether no gang has another turn in buckets that may not preempt."""
        return len(self._shut) == len(self._backlog.demands)

    def is_open(self, entry: BacklogEntry) -> bool:
        """Whether the gangs of an entry may have a turn, unless they are closed one by one."""
        demand, expected = entry.profile.demand, self._expected_ms(entry)
        if self._everywhere and not entry.profile.avoid and expected >= self._everywhere.get(demand, _OPEN)[0]:
            return False
        if self._is_closed(entry.priority, entry.queue, demand):
            return False
        if self._long_runs and expected >= self._long_runs.get(demand, _OPEN)[0]:
            if not self._insists(entry.priority, entry.queue, demand):
                return False
        in_bucket = self._in_bucket
        if in_bucket and expected >= in_bucket.get((entry.priority, entry.queue, demand), _OPEN)[0]:
            return False
        return entry not in self._entries

    def open_entries(
        self, bucket: Bucket, takes_part: Callable[[Demand], bool] | None = None
    ) -> list[Mapping[str, BacklogEntry]]:
        """The entries of a bucket that may have a turn, by profile: user -> entry. Entries that are closed themselves
        are among them. ``takes_part``: which demands are of interest; None: all."""
        priority, queue = bucket.priority, bucket.queue
        demands: Iterable[Demand] = bucket.by_demand
        if self._demands and not self._room.may_have_rights(queue, priority):
            demands = [demand for demand in demands if demand not in self._demands]
        found: list[Mapping[str, BacklogEntry]] = []
        for demand in demands:
            if takes_part is not None and not takes_part(demand):
                continue
            if self._is_closed(priority, queue, demand):
                continue
            shortest = NEVER_MS
            if demand in self._long_runs and not self._insists(priority, queue, demand):
                shortest = self._long_runs[demand][0]
            if self._in_bucket:
                shortest = min(shortest, self._in_bucket.get((priority, queue, demand), _OPEN)[0])
            if shortest > 0:
                everywhere = self._everywhere.get(demand, _OPEN)[0]
                for profile, entries in bucket.by_demand[demand].items():
                    expected = profile.expected_ms or self._default_ms
                    if expected < shortest and (expected < everywhere or profile.avoid):
                        found.append(entries)
        return found

    def is_barred(self, gang: Gang) -> bool:
        """Whether a gang has no turn for a reason of its own or of its queue, and not because there is no room."""
        if gang.id in self.gangs or (entry := self._backlog.entry(gang)) in self._entries:
            return True
        closed = self._in_bucket.get((gang.priority, gang.queue, gang.demand), _OPEN)
        return self._expected_ms(entry) >= closed[0]

    def is_demoted(self, entry: BacklogEntry) -> bool:
        """Whether the gangs of an entry have no turn as owners."""
        length_ms, milli = self._demoted.get(entry.queue, (NEVER_MS, NEVER_MS))
        return self._expected_ms(entry) >= length_ms and least_gpu_milli(entry.profile.demand) >= milli

    def _is_closed(self, priority: int, queue: str, demand: Demand) -> bool:
        """Whether a demand has no other turn in a bucket, however short the run."""
        is_closed = demand in self._demands
        if self._classes:
            kind = self._backlog.class_of[demand]
            if (priority, queue, kind) in self._classes:
                return True
            is_closed = is_closed or kind in self._classes
        return is_closed and not self._insists(priority, queue, demand)

    def _insists(self, priority: int, queue: str, demand: Demand) -> bool:
        return self._room.may_insist(queue, priority, demand)

    def _expected_ms(self, entry: BacklogEntry) -> int:
        return entry.profile.expected_ms or self._default_ms

    # ---- closing -----------------------------------------------------------------------------------------------

    def skip(self, gang: Gang, verdict: Verdict) -> None:
        """The gang has had its turn; gangs behind it may have one."""
        self.gangs[gang.id] = (0, verdict)
        self.changes.touch(gang.queue)

    def close_entry(self, gang: Gang, verdict: Verdict) -> None:
        """Gangs of its user that want the same have no other turn."""
        self._entries[self._backlog.entry(gang)] = (0, verdict)
        self.changes.touch(gang.queue)

    def close_in_bucket(self, gang: Gang, verdict: Verdict, from_ms: int = 0) -> None:
        """No gang of its bucket that wants the same for ``from_ms`` or longer has another turn."""
        _lower(self._in_bucket, (gang.priority, gang.queue, gang.demand), (from_ms, verdict))
        self.changes.touch(gang.queue)

    def close(self, gang: Gang, verdict: Verdict, from_ms: int = 0) -> None:
        """Its demand does not fit for runs of ``from_ms`` or longer, in its bucket; and if that may not preempt, in all
        buckets that may not."""
        self.close_in_bucket(gang, verdict, from_ms)
        if not self._insists(gang.priority, gang.queue, gang.demand):
            self.close_demand(gang.demand, verdict, from_ms)

    def close_demand(self, demand: Demand, verdict: Verdict, from_ms: int = 0) -> None:
        """A demand does not fit for runs of ``from_ms`` or longer, in any bucket that may not preempt."""
        if all((expected or self._default_ms) >= from_ms for expected in self._backlog.demands[demand]):
            self.close_demands((demand,), verdict)
            return
        _lower(self._long_runs, demand, (from_ms, verdict))
        self.changes.close((demand,))

    def close_demands(self, demands: Collection[Demand], verdict: Verdict) -> None:
        """These demands do not fit in any bucket that may not preempt."""
        self._demands.update(dict.fromkeys(demands, (0, verdict)))
        self._shut.update(demands)
        self.changes.close(demands)

    def close_full(self, pools: Pools, pool: Pool) -> None:
        """Close the demands of a pool that cannot fit, for gangs that may not preempt. Equivalent to giving each of
        them a turn."""
        classes = self._backlog.classes
        for kind, may_fit in self._room.could_take(classes).items():
            if not may_fit and pools.of(next(iter(classes[kind]))) == pool:
                self.close_demands(classes[kind], NoSeats.NONE_FREE)

    def close_class(self, gang: Gang, verdict: Verdict) -> None:
        """There is no room for any demand of its class, and no gang that its bucket could preempt. Equivalent to giving
        a turn to each of these demands until a gang is preempted: call ``reopen`` when that happens."""
        kind = self._backlog.class_of[gang.demand]
        self._classes[gang.priority, gang.queue, kind] = (0, verdict)
        if not self._insists(gang.priority, gang.queue, gang.demand):
            self._classes[kind] = (0, verdict)
            self._shut.update(self._backlog.classes[kind])
            self.changes.close(self._backlog.classes[kind])
        self.changes.touch(gang.queue)

    def close_everywhere(self, demand: Demand, verdict: Verdict, from_ms: int = 0) -> None:
        """No gang with this demand that avoids no node and runs for ``from_ms`` or longer has another turn."""
        _lower(self._everywhere, demand, (from_ms, verdict))
        self.changes.close((demand,))

    def close_for_quota(self, gang: Gang, short: Shortfall, from_ms: int) -> None:
        """A bound blocks the gang: one of its user blocks its entry; one of a queue blocks all gangs of its bucket that
        want the same for ``from_ms`` or longer."""
        closed = self._for_quota.setdefault(ROOT if short.kind == "not_lent" else short.queue, [])
        if short.kind == "user_limit":
            self.close_entry(gang, short)
            closed.append(self._backlog.entry(gang))
        else:
            self.close_in_bucket(gang, short, from_ms)
            closed.append((gang.priority, gang.queue, gang.demand))

    def close_for_part(self, gang: Gang, part: PartKept, within_ms: int) -> None:
        """A part of a limit is kept for another gang, so this entry has no other turn, and neither have gangs of its
        bucket that want the same and may still run after ``within_ms``, unless it is the limit of one user. If only its
        grace is too long, the gang alone has no other turn: others may have a shorter one."""
        closed = self._for_quota.setdefault(part.queue, [])
        from_ms = self._backlog.not_gone_ms(gang.demand, within_ms, self._default_ms)
        if from_ms > self._expected_ms(self._backlog.entry(gang)):
            self.skip(gang, part)
            closed.append(gang.id)
            return
        self.close_entry(gang, part)
        closed.append(self._backlog.entry(gang))
        if not part.user:
            self.close_in_bucket(gang, part, from_ms)
            closed.append((gang.priority, gang.queue, gang.demand))

    def close_rest(self, verdict: Verdict) -> None:
        """No gang has another turn."""
        self._rest = verdict

    def demote(self, gang: Gang, from_ms: int) -> bool:
        """A part of the guarantee of its queue is kept for another gang: gangs of the queue that run for ``from_ms`` or
        longer, and want no fewer GPUs than this one, have their turns as borrowers. False if this one does already."""
        if self.is_demoted(self._backlog.entry(gang)):
            return False
        length_ms, milli = self._demoted.get(gang.queue, (NEVER_MS, NEVER_MS))
        self._demoted[gang.queue] = (min(length_ms, from_ms), min(milli, least_gpu_milli(gang.demand)))
        self.changes.touch(gang.queue)
        return True

    def promote(self) -> None:
        """Demoted gangs have their turns as owners again."""
        if self._demoted:
            self._demoted.clear()
            self.changes.is_reopened = True

    def forget(self) -> None:
        """All may have a turn again: nothing is closed."""
        self.gangs.clear()
        for closed in (self._entries, self._in_bucket, self._demands, self._long_runs, self._classes, self._everywhere):
            closed.clear()
        self._shut.clear()
        self._for_quota.clear()
        self._demoted.clear()
        self.changes = Changes()

    def reopen(self, left: Iterable[str]) -> None:
        """Gangs of the queues ``left`` were preempted, or a part of a limit is no longer kept for a gang of them. What
        becomes free may be claimed: closed classes and demoted gangs have their turns again, and so have gangs that
        were closed because of a bound of these queues or of a queue above them."""
        freed = {name for queue in left for name in self._draft.queues.path(queue)}
        stale = [each for name in freed for each in self._for_quota.pop(name, ())]
        for each in stale:
            if isinstance(each, BacklogEntry):
                self._entries.pop(each, None)
            elif isinstance(each, str):
                self.gangs.pop(each, None)
            else:
                self._in_bucket.pop(each, None)
        if self._classes or stale or self._demoted:
            self._classes.clear()
            self._shut = set(self._demands)
            self._demoted.clear()
            self.changes.is_reopened = True


class Changes:
    """What was closed or reopened since the walk last looked: the first gang of these queues, and of buckets that offer
    one with these demands, may be a different one."""

    def __init__(self) -> None:
        self.queues: dict[str, None] = {}
        self.demands: dict[Demand, None] = {}
        self.is_reopened = False

    def touch(self, queue: str) -> None:
        self.queues[queue] = None

    def close(self, demands: Iterable[Demand]) -> None:
        self.demands.update(dict.fromkeys(demands))


def _lower(closed: dict[_Key, Closed], key: _Key, by: Closed) -> None:
    """Close runs of this length, too. The verdict on shorter runs holds for longer ones."""
    if by[0] < closed.get(key, _OPEN)[0]:
        closed[key] = by
