"""Bugs to plant: small changes of the source, each with what it breaks and the tests that must see it.

``old`` is found exactly once in its file: test_mutants.py sees to that. run.py plants the bugs one by one.
"""

from __future__ import annotations

from dataclasses import dataclass

CORE, POLICY = "src/corral/core", "src/corral/policy"
HEALTH = "src/corral/health"
FLEET = "src/corral/remote"

APPLY = "tests/core/test_apply.py::"
_CHARGED = "test_a_gang_is_metered_until_it_has_stopped_and_charged_unless_it_makes_room_for_others"
COMMIT = "tests/core/test_commit.py::"
QUOTA = "tests/core/test_quota.py::"
UNDO = "tests/core/test_undo.py::"
SETTLE = "tests/core/test_settle.py::"
ENGINE = "tests/core/test_engine.py::"
TRAPS = "tests/traps/test_traps.py::"
VICTIMS = "tests/policy/test_victims.py::"
LARGE = "tests/policy/test_large_gangs.py::"
LAWS = "tests/simulation/test_laws.py::test_no_law_is_broken_under_standard"
CHANGES = "tests/simulation/test_laws.py::test_no_law_is_broken_while_everything_changes"
ORDER = "tests/policy/test_queue_order.py::"
SEARCHES = "tests/policy/test_failed_searches.py::"
RUNS = "tests/judges/runs/test_scenarios.py::"
FLEET_BACKEND = "tests/agent/test_remote_backend.py::"
SAME_JOURNAL = "tests/simulation/test_determinism.py::"


@dataclass(frozen=True)
class Mutant:
    """``bug``: what is wrong once ``old`` reads ``new``. ``killers``: the tests that fail with it."""

    name: str
    file: str
    old: str
    new: str
    bug: str
    killers: tuple[str, ...]


def scenario(name: str) -> str:
    return f"tests/scenarios/test_scenarios.py::test_the_plan_is_as_written[{name}]"


def judged(name: str) -> str:
    return f"tests/judges/test_findings.py::test_the_promise_is_kept[{name}]"


MUTANTS: tuple[Mutant, ...] = (
    # ---- nothing is overcommitted, nothing is committed unseen --------------------------------------------
    Mutant(
        "commit_used_gpus",
        f"{CORE}/commit.py",
        "if seat.gpus & capacity.used[n]:",
        "if False:",
        "A place is committed on GPUs that were taken since.",
        (f"{COMMIT}test_a_place_is_dropped_whole_if_one_of_its_gpus_was_taken",),
    ),
    Mutant(
        "commit_other_amounts",
        f"{CORE}/commit.py",
        "return capacity.tasks_by_amounts(n, gang.amounts, 1) == 1 if gang.amounts else True",
        "return True",
        "CPUs and memory are not checked again at commit.",
        (f"{COMMIT}test_a_place_is_dropped_if_other_amounts_ran_out",),
    ),
    Mutant(
        "commit_slices",
        f"{CORE}/commit.py",
        "elif shared < seat.slice_mib:",
        "elif shared < 0:",
        "Slices are put on a GPU beyond its VRAM.",
        (f"{COMMIT}test_slices_of_one_gpu_are_placed_until_it_is_full",),
    ),
    Mutant(
        "commit_late_plans_unchecked",
        f"{CORE}/commit.py",
        "if not _are_free(draft, gang, seats):",
        "if not seats:",
        "A late plan is believed.",
        (CHANGES,),
    ),
    Mutant(
        "commit_quota_unchecked",
        f"{CORE}/commit.py",
        "        if not _may_be_charged(draft, gang, charge, gpu_ms):",
        "        if not charge and seats:",
        "The limit of a queue is not checked again at commit.",
        (f"{COMMIT}test_two_places_that_together_pass_the_limit_of_their_queue_are_not_both_committed",),
    ),
    Mutant(
        "commit_old_attempt",
        f"{CORE}/commit.py",
        "gang.blockers or gang.attempt + 1 != decision.attempt",
        "gang.blockers",
        "A plan for an earlier attempt starts the gang again.",
        (f"{COMMIT}test_a_place_is_dropped_if_it_names",),
    ),
    Mutant(
        "commit_takes_claimed",
        f"{CORE}/commit.py",
        "if seat.gpus & capacity.claimed[n] or (",
        "if (",
        "A late plan takes GPUs that are held for another gang.",
        (f"{COMMIT}test_what_was_freed_is_held_for_the_claimant",),
    ),
    Mutant(
        "commit_takes_nothing_back",
        f"{CORE}/commit.py",
        "        draft.undo(mark)\n        return []",
        "        return []",
        "Preemptor that was refused leaves its victims evicted in the draft.",
        (f"{COMMIT}test_room_that_was_refused_promises_no_one_the_cpus_of_its_victims",),
    ),
    Mutant(
        "commit_no_grace",
        f"{CORE}/commit.py",
        "deadline = draft.now_ms + draft.snapshot.job(victim).spec.grace_ms",
        "deadline = draft.now_ms",
        "Victims get no grace.",
        (f"{COMMIT}test_victims_have_their_own_grace_to_leave",),
    ),
    Mutant(
        "undo_stops_short",
        f"{CORE}/undo.py",
        "range(len(log) - mark):",
        "range(len(log) - mark - 1):",
        "Undo does not restore the first thing that was changed.",
        ("tests/properties/test_capacity_laws.py::test_undo_restores_everything",),
    ),
    Mutant(
        "undo_forgets_who_leaves",
        f"{CORE}/snapshot.py",
        "self._put(self.leaving, gang.id, None)",
        "self.leaving[gang.id] = None",
        "A gang whose eviction was undone still counts as evicted.",
        (LAWS, f"{UNDO}test_undo_restores_all_of_a_draft"),
    ),
    Mutant(
        "undo_forgets_what_is_not_lent",
        f"{CORE}/queues/quota.py",
        """log += ((self.__dict__, "_unlent", self._unlent), (charged, amounts, ADDED))""",
        "log.append((charged, amounts, ADDED))",
        "What was computed during a trial about lending is believed after its undo.",
        (LAWS,),
    ),
    Mutant(
        "undo_forgets_runs",
        f"{CORE}/queues/quota.py",
        "self._put(self.runs[each], (gang, is_next), run)",
        "self.runs[each][gang, is_next] = run",
        "A budget still counts the run of a gang whose start was undone.",
        (LAWS,),
    ),
    Mutant(
        "claim_not_held",
        f"{CORE}/cluster/capacity.py",
        "free = self.up[node] & ~self.used[node] & ~self.claimed[node]",
        "free = self.up[node] & ~self.used[node]",
        "What was freed for a claimant is free for every gang.",
        (f"{TRAPS}test_trap_03_gpus_that_were_freed_are_held_while_other_victims_drain",),
    ),
    Mutant(
        "unknown_capacity_is_zero",
        f"{CORE}/cluster/capacity.py",
        "have.get(name) for have in stated",
        "have.get(name, 0) for have in stated",
        "An amount that a node does not state is read as zero.",
        ("tests/core/test_capacity.py::test_tasks_by_amounts",),
    ),
    Mutant(
        "unknown_quota_is_zero",
        f"{CORE}/cluster/resources.py",
        "            return value\n    return None",
        "            return value\n    return 0",
        "A bound that is not stated is read as zero.",
        (f"{TRAPS}test_trap_07_a_queue_that_states_no_bound_for_a_dimension_is_not_bounded_at_zero",),
    ),
    Mutant(
        "spares_not_charged",
        f"{CORE}/cluster/resources.py",
        "task, count = self.task, size + self.spares",
        "task, count = self.task, size",
        "A queue passes its limit by the spares of its gangs.",
        ("tests/core/test_resources.py::test_spares_are_charged_like_tasks",),
    ),
    # ---- topology -----------------------------------------------------------------------------------------
    Mutant(
        "islands_ignored",
        f"{CORE}/cluster/slots.py",
        "groups = sum((usable & island).bit_count() // group for island in topology.islands(node))",
        "groups = usable.bit_count() // group",
        "A tensor-parallel group is assumed to fit across NVLink islands.",
        (scenario("topology_tp_islands"), "tests/core/test_slots.py::test_slots"),
    ),
    Mutant(
        "spread_over_racks_ignored",
        f"{CORE}/cluster/slots.py",
        "_cut(found, domain, demand.spread_max, largest_first=demand.within == NODE_LEVEL)",
        "pass",
        "A gang that must be spread over racks sits in one.",
        (scenario("topology_spread_over_racks"),),
    ),
    Mutant(
        "spread_over_nodes_ignored",
        f"{CORE}/cluster/slots.py",
        "found = [min(count, demand.spread_max) for count in found]",
        "pass",
        "A gang that must be spread over nodes sits on one.",
        ("tests/core/test_slots.py::test_slots",),
    ),
    Mutant(
        "loosest_domain",
        f"{POLICY}/placement/seating.py",
        "_, number = min(fitting)",
        "_, number = max(fitting)",
        "The emptiest rack is broken up for small gangs.",
        (scenario("topology_tightest_rack_first"),),
    ),
    Mutant(
        "spare_not_used",
        f"{POLICY}/cycle/elastic.py",
        "if spares and _keeps_constraints(",
        "if not spares and _keeps_constraints(",
        "A spare is held and never takes the place of what was lost.",
        (scenario("repair_with_a_spare"),),
    ),
    # ---- attempts, runs and ends --------------------------------------------------------------------------
    Mutant(
        "attempt_does_not_increase",
        f"{CORE}/apply_gangs.py",
        "gang.state, gang.attempt = GangState.STARTING, event.attempt",
        "gang.state = GangState.STARTING",
        "A new run has the number of the old one.",
        ("tests/core/test_effects.py::test_an_effect_names_the_attempt_that_is_under_way", f"{LAWS}[0]"),
    ),
    Mutant(
        "time_limit_counts_earlier_runs",
        f"{CORE}/apply_gangs.py",
        "gang.started_ms = event.at_ms",
        "gang.started_ms = event.at_ms - gang.done_ms",
        "What was run before an eviction counts against the time limit.",
        (f"{TRAPS}test_trap_05_the_time_limit_does_not_count_earlier_evicted_runs",),
    ),
    Mutant(
        "leaving_is_charged",
        f"{CORE}/apply_gangs.py",
        "    if not event.is_charged:\n        _set_charge(state, gang, ())",
        "    if False:\n        _set_charge(state, gang, ())",
        "A queue is charged for gangs that make room for others.",
        (f"{APPLY}{_CHARGED}[reclaim-0]",),
    ),
    Mutant(
        "cancelled_is_free",
        f"{CORE}/apply_gangs.py",
        "    if not event.is_charged:\n        _set_charge(state, gang, ())",
        "    if True:\n        _set_charge(state, gang, ())",
        "A gang that leaves by its own will keeps its GPUs and is charged nothing.",
        (f"{APPLY}{_CHARGED}[cancel-4000]",),
    ),
    Mutant(
        "budget_not_charged_on_entry",
        f"{CORE}/apply_gangs.py",
        "commit_budget(gang.queue, gang.committed_gpu_ms)",
        "commit_budget(gang.queue, 0)",
        "A burst of starts passes the budget before any of them has ended.",
        (f"{SETTLE}test_a_start_counts_against_the_budget_at_once_and_its_end_gives_back_the_rest",),
    ),
    Mutant(
        "retries_shared_by_all_faults",
        f"{CORE}/settle.py",
        "used = gang.retries.get(failure, 0)",
        "used = sum(gang.retries.values())",
        "A fault of the infrastructure uses up the retries of the user.",
        (f"{SETTLE}test_a_retry_rule_is_used_up_by_its_own_class_alone",),
    ),
    Mutant(
        "preemption_is_a_failure",
        f"{CORE}/settle.py",
        "if failure is FailureClass.PREEMPTED:",
        "if failure is FailureClass.CANCELLED:",
        "A gang that was evicted has failed.",
        (f"{TRAPS}test_trap_15_being_preempted_is_never_a_failure_however_often_and_however_soon",),
    ),
    Mutant(
        "crash_loop_goes_on",
        f"{CORE}/settle.py",
        'return [_finish(gang, GangState.FAILED, _why("crash loop", first), now_ms, failure)]',
        "pass",
        "A gang that fails at once is started for ever.",
        (f"{SETTLE}test_a_crash_loop_is_stopped_even_if_retries_are_without_end",),
    ),
    Mutant(
        "late_report_accepted",
        f"{CORE}/engine.py",
        "gang.attempt == attempt and gang.holds_seats",
        "gang.holds_seats",
        "A report of an earlier run ends the present one.",
        (f"{TRAPS}test_trap_14_a_late_report_of_a_preempted_run_does_not_end_the_next_one",),
    ),
    Mutant(
        "repeated_report_accepted",
        f"{CORE}/engine.py",
        "news = 0 if gang is None else fact.tasks & gang.everyone & ~gang.ended",
        "news = 0 if gang is None else fact.tasks & gang.everyone",
        "A task that ended twice has ended twice.",
        (f"{ENGINE}test_a_task_ends_once",),
    ),
    Mutant(
        "start_timeout_ignored",
        f"{CORE}/engine.py",
        "return evict(state, gang, Cause.START_TIMEOUT, now_ms)",
        "return []",
        "A gang that never comes up holds its seats for ever.",
        (f"{SETTLE}test_a_start_that_is_not_complete_in_time_is_rolled_back_and_tried_again",),
    ),
    Mutant(
        "dependency_ignored",
        f"{CORE}/apply.py",
        "if not state.jobs[dependency.job].is_over:",
        "if state.jobs[dependency.job].is_over:",
        "A dependent does not wait.",
        (f"{SETTLE}test_a_dependent",),
    ),
    Mutant(
        "array_limit_ignored",
        f"{CORE}/apply.py",
        "job.active = min(job.array_slots, len(job.gangs))",
        "job.active = len(job.gangs)",
        "All elements of an array run at once.",
        (f"{SETTLE}test_an_array_runs_no_more_abreast_than_it_may",),
    ),
    Mutant(
        "replay_differs",
        f"{CORE}/apply.py",
        "        state.refresh()\n        assert may_follow",
        "        assert may_follow",
        "The columns depend on who looked at the state between two events, so a replay differs.",
        (f"{APPLY}test_the_columns_are_right_though_no_one_looked_before",),
    ),
    Mutant(
        "drained_node_takes_work",
        f"{CORE}/state.py",
        "return node.health is Health.HEALTHY and not node.lost and not node.drained",
        "return node.health is Health.HEALTHY and not node.lost",
        "New work is placed on a node that is being drained.",
        (scenario("drain_asks_gangs_to_leave"), scenario("out_of_service")),
    ),
    Mutant(
        "drain_ignored",
        f"{POLICY}/cycle/standard.py",
        "self.decisions.append(Evict(gang.id, gang.attempt, Cause.DRAIN))",
        "pass",
        "What runs on a drained node stays.",
        (scenario("drain_asks_gangs_to_leave"),),
    ),
    # ---- who is next --------------------------------------------------------------------------------------
    Mutant(
        "line_out_of_order",
        f"{CORE}/queues/backlog.py",
        "if not self._ranks or gang.rank > self._ranks[-1]:",
        "if True:",
        "A gang that is requeued is behind gangs that came later.",
        ("tests/core/test_backlog.py::test_who_returns_gets_its_place_back",),
    ),
    Mutant(
        "ages_not_pruned",
        f"{CORE}/queues/backlog.py",
        "self.ages[gang.priority].remove(gang)",
        "pass",
        "Everyone who ever waited is remembered and looked through in every cycle.",
        ("tests/core/test_backlog.py::test_who_has_left_is_not_kept_in_mind_for_ever",),
    ),
    Mutant(
        "no_entry_charge",
        f"{POLICY}/cycle/fairness.py",
        "self._charge = self._tree.entry_charge_ms * _SCALE",
        "self._charge = 0",
        "What a queue starts counts only as time passes, so a burst gains.",
        (
            "tests/policy/test_fairness.py::test_a_start_is_charged_at_once_so_that_a_burst_gains_nothing",
            f"{TRAPS}test_trap_23_a_burst_that_came_alone_is_charged_on_entry",
        ),
    ),
    Mutant(
        "decay_within_one_half_life",
        f"{CORE}/queues/usage.py",
        "return (value >> (cells // CELLS)) * ",
        "return value * ",
        "Usage is forgotten within a half-life only, and then comes back.",
        ("tests/properties/test_amount_laws.py::test_decay_in_two_steps_is_decay_in_one",),
    ),
    Mutant(
        "reservation_ignored",
        f"{POLICY}/backfill/calendar.py",
        "        if not binding:\n            return FREE",
        "        if binding or not binding:\n            return FREE",
        "Small work takes the GPUs that are reserved for the first blocked gang.",
        (scenario("backfill_easy"),),
    ),
    Mutant(
        "reservation_binds_short_work",
        f"{POLICY}/backfill/calendar.py",
        "each.at_ms < until and each.gang not in exempt",
        "each.gang not in exempt",
        "Work that ends before a reserved start may not be backfilled.",
        (scenario("backfill_until_it_starts"), scenario("backfill_easy")),
    ),
    Mutant(
        "kept_promise_ignored",
        f"{POLICY}/backfill/timetable.py",
        "barred[n] = _highest(capacity.free[n], needed[GPUS])",
        "barred[n] = 0",
        "Work that comes later takes the GPUs of a durable reservation.",
        ("tests/policy/test_timetable.py::test_who_is_behind_takes_what_nobody_was_promised",),
    ),
    Mutant(
        "patience_ignored",
        f"{POLICY}/backfill/patience.py",
        "if since <= self._since_ms and (best is None or since < best[0]):",
        "if False:",
        "The oldest gang waits for ever behind queues that have had less.",
        (scenario("order_overdue"),),
    ),
    Mutant(
        "patience_without_rest",
        f"{POLICY}/backfill/patience.py",
        "self._over.update(self._resting(priority))",
        "pass",
        "Once the whole backlog has waited too long, every start is by age, and shares and weights count no more.",
        ("tests/policy/test_patience.py::test_a_backlog_older_than_patience_leaves_every_queue_its_share",),
    ),
    Mutant(
        "patience_of_a_failed_job",
        f"{CORE}/apply_gangs.py",
        'OutOfTurn("", known.since_ms, known.until(now_ms, expected))',
        'OutOfTurn("", known.since_ms, known.until_ms)',
        "A job that went before its turn and failed at once takes the right from all others for long.",
        ("tests/policy/test_patience.py::test_who_went_before_its_turn_and_failed_at_once_keeps_nobody_waiting",),
    ),
    Mutant(
        "limit_without_reservation",
        f"{POLICY}/cycle/standard.py",
        "self.limits.keep_for(gang, shortfall)",
        "pass",
        "A stream of small jobs keeps a gang as large as the limit of its queue from ever starting.",
        (f"{LARGE}test_a_large_gang_has_its_part_of_the_limit",),
    ),
    Mutant(
        "patience_before_owners",
        f"{POLICY}/backfill/patience.py",
        "yields_to(self._draft, gang, first)",
        "False",
        "A gang that has waited too long goes before an owner, who reclaims it at once.",
        ("tests/policy/test_patience.py::test_an_owner_goes_before_who_has_waited_too_long",),
    ),
    Mutant(
        "promise_broken_by_quota",
        f"{POLICY}/cycle/standard.py",
        "if bounds is not None and self._make_room(walk, gang, bounds):",
        "if bounds is not None and self._make_room(walk, gang, FREE):",
        "A queue at its limit that replaces its own takes seats that are reserved for another.",
        (f"{LARGE}test_a_promised_start_is_kept_when_a_queue_at_its_limit_makes_room_for_its_own",),
    ),
    # ---- quota --------------------------------------------------------------------------------------------
    Mutant(
        "limit_off_by_one",
        f"{CORE}/queues/quota.py",
        "if used + asked > limit:",
        "if used + asked >= limit:",
        "A queue may not use the last of its limit.",
        (f"{QUOTA}test_a_limit_holds_up_to_its_last_gpu", scenario("quota_limit")),
    ),
    Mutant(
        "user_limit_ignored",
        f"{CORE}/queues/quota.py",
        "if bound is not None and mine + asked > bound:",
        "if bound is not None and asked > bound:",
        "The limit of a user holds for each gang alone.",
        (scenario("quota_user_limit"),),
    ),
    Mutant(
        "lend_ignored",
        f"{CORE}/queues/lending.py",
        "return max(0, (tree.guarantee(name, dimension, now_ms) or 0) - lend)",
        "return 0",
        "What a queue keeps for itself is lent.",
        (scenario("quota_lend"),),
    ),
    # ---- who makes room -----------------------------------------------------------------------------------
    Mutant(
        "victims_in_the_order_of_a_set",
        f"{POLICY}/preemption/preemptor.py",
        "for c in sorted(picked, key=lambda c: (c.price, c.gang.rank))",
        "for c in sorted(picked, key=lambda c: hash(c.gang.id))",
        "The order of victims differs from process to process.",
        (f"{SAME_JOURNAL}test_victims_are_told_in_the_same_order_under_any_hash_seed",),
    ),
    Mutant(
        "of_equals_the_first_leaves",
        f"{POLICY}/preemption/vacancy.py",
        "return (candidate.price, -candidate.gang.rank)",
        "return (candidate.price, candidate.gang.rank)",
        "Of victims of equal cost the one that came first is preempted.",
        (f"{VICTIMS}test_of_equally_dear_victims_the_one_that_came_last_leaves",),
    ),
    Mutant(
        "victims_not_trimmed",
        f"{POLICY}/preemption/search.py",
        "found = self._trim(list(chosen.values()), at)",
        "found = list(chosen.values())",
        "Gangs leave that need not, and sets are taken that are not enough.",
        (
            f"{VICTIMS}test_nobody_leaves_in_vain",
            f"{VICTIMS}test_victims_are_the_cheapest_of_all_legal_sets_that_are_enough",
        ),
    ),
    Mutant(
        "leaving_counts_against_newcomers",
        f"{POLICY}/preemption/preemptor.py",
        "capacity.give_back(n, seat.gpus, seat.slice_mib, gang.amounts)",
        "pass",
        "Another gang is preempted though enough are stopping already.",
        (f"{TRAPS}test_trap_10_what_is_leaving_already_is_not_counted_against_the_newcomer",),
    ),
    Mutant(
        "guarantee_floor_ignored",
        f"{POLICY}/preemption/ledger.py",
        "self._above[key] = self._tree.queues[queue].used.get(dimension, 0) - guarantee",
        "self._above[key] = 1 << 60",
        "A queue that borrows a little loses what it is guaranteed, too.",
        (f"{VICTIMS}test_a_queue_gives_back_what_it_borrowed_and_no_more",),
    ),
    Mutant(
        "borrower_by_priority",
        f"{POLICY}/preemption/rights.py",
        "if not is_borrowing:\n            return None",
        "if not is_borrowing:\n            return Cause.PRIORITY if is_lower else None",
        "A borrower of high priority takes what another queue is guaranteed.",
        (f"{VICTIMS}test_a_louder_borrower_does_not_take_cpus_that_another_queue_is_guaranteed",),
    ),
    Mutant(
        "minimum_runtime_ignored",
        f"{POLICY}/preemption/preemptor.py",
        "and not (spec.min_runtime_ms and run_ms(each) < spec.min_runtime_ms)",
        "",
        "A gang is evicted before its minimum run time.",
        (scenario("preempt_min_runtime"),),
    ),
    Mutant(
        "silence_pays",
        f"{CORE}/snapshot.py",
        "unsaved = min(unsaved, SILENT_MS)",
        "unsaved = max(unsaved, SILENT_MS)",
        "A gang that never says what it saved is spared.",
        (f"{TRAPS}test_trap_24_silence_does_not_grow_dearer_with_time",),
    ),
    Mutant(
        "given_up_too_early",
        f"{POLICY}/cycle/standard.py",
        "self.closures.close_everywhere(gang.demand, verdict, last_ms - self.now_ms + 1 if last_ms >= 0 else 0)",
        "self.closures.close_everywhere(gang.demand, verdict)",
        "A demand is closed everywhere though a gang would end before a reserved start.",
        ("tests/policy/test_closed_demands.py::test_giving_up_on_a_demand_changes_no_decision",),
    ),
    Mutant(
        "node_avoided_for_a_fenced_gpu",
        f"{CORE}/settle.py",
        "if failure is FailureClass.GPU_FAULT and _is_fenced(state, gang, node):",
        "if False:",
        "A whole node is shunned for one GPU that gets no task any more.",
        (
            f"{SETTLE}test_a_gpu_that_failed_is_fenced_alone_and_its_gang_goes_on_beside_it_at_once",
            scenario("failed_gpu_is_fenced_alone"),
        ),
    ),
    # ---- health --------------------------------------------------------------------------------------------
    Mutant(
        "once_is_enough",
        f"{HEALTH}/judgement.py",
        "hits.bit_count() >= terms.needs",
        "hits.bit_count() >= 1",
        "One hot moment takes a GPU out of service.",
        ("tests/health/test_judgement.py::test_after_these_looks[once hot is nothing]",),
    ),
    Mutant(
        "time_heals",
        f"{HEALTH}/judgement.py",
        "if record.owes_probe or record.health is Health.HEALTHY:",
        "if record.health is Health.HEALTHY:",
        "A GPU that failed comes back without having been tried.",
        ("tests/health/test_judgement.py::test_what_failed_comes_back_only_after_a_probe",),
    ),
    Mutant(
        "unknown_is_gone",
        f"{HEALTH}/nvml.py",
        'return getattr(error, "value", None) in gone',
        "return True",
        "A GPU that does not answer one question is reported lost, and its job is ended.",
        ("tests/health/test_devices.py::test_what_nvml_does_not_tell_is_unknown",),
    ),
    # ---- many machines -------------------------------------------------------------------------------------
    Mutant(
        "versions_of_the_agent_before",
        f"{FLEET}/node_session.py",
        "self.known, self.is_heard = 0, False",
        "self.is_heard = False",
        "What an agent reports after a restart is taken as known, and its tasks are never reported again.",
        (
            f"{FLEET_BACKEND}test_an_agent_that_begins_again_on_a_node_that_was_given_up_is_believed_no_more_than_it_says",
        ),
    ),
    Mutant(
        "back_with_tasks",
        f"{FLEET}/node_session.py",
        "return message.is_full and is_after and all(task.down is not None for task in message.tasks)",
        "return message.is_full and is_after",
        "A machine that was given up is used again while something still runs there.",
        (f"{FLEET_BACKEND}test_a_node_is_given_up_with_all_that_ran_there_and_returns_when_it_is_empty",),
    ),
    Mutant(
        "forgotten_epoch",
        f"{FLEET}/backend.py",
        "elif member.is_heard and message.epoch < self._epoch:",
        "elif False:",
        "An agent that speaks from the past is believed, and gets a lease.",
        (f"{FLEET_BACKEND}test_an_agent_that_falls_back_behind_an_epoch_it_has_known_is_refused",),
    ),
    Mutant(
        "sleeper_blames",
        f"{FLEET}/leases.py",
        "slept = self._swept_ms is not None and now_ms - self._swept_ms > self._settings.stall_ms",
        "slept = False",
        "A server that slept gives all its machines up when it wakes.",
        ("tests/agent/test_lease.py::test_a_stalled_server_does_not_blame_the_nodes",),
    ),
    # ---- guarantees between queues, seen by the judges -------------------------------------------------------
    Mutant(
        "lend_of_children_ignored",
        f"{CORE}/queues/lending.py",
        "below = sum([unlent(tree, child, dimension, now_ms) for child in queue.children])",
        "below = 0",
        "What a nested queue does not lend is taken by queues outside its parent.",
        (judged("093_lend_of_a_nested_queue"),),
    ),
    Mutant(
        "own_work_takes_what_children_keep",
        f"{CORE}/queues/lending.py",
        "return None if bound is None else bound - _unlent_of(tree, tree.queues[name].children, dimension, now_ms)",
        "return bound",
        "The work of a queue itself takes what the queues below it do not lend.",
        (judged("093_lend_beside_the_queue_above"),),
    ),
    Mutant(
        "one_gang_asked_twice",
        f"{POLICY}/preemption/search.py",
        "if item[0].gang.demand.tasks_min:  # of one that could shrink or leave, only what gives up more",
        "if False:",
        "A gang that could shrink or leave is counted twice, and the search fails.",
        (judged("105_slices_on_one_gpu_leave_together"),),
    ),
    # ---- order, guarantees, budgets ------------------------------------------------------------------------
    Mutant(
        "share_before_priority",
        f"{POLICY}/cycle/order.py",
        "return (-priority, share, name)",
        "return (share, -priority, name)",
        "Between queues, the share counts before the priority.",
        (f"{ORDER}test_the_walk_gives_turns_in_the_order_of_the_rule_also_while_it_is_charged_and_lines_are_closed",),
    ),
    Mutant(
        "owner_by_its_own_queue_alone",
        f"{POLICY}/cycle/tournament.py",
        "entrant.is_entitled = is_owner and self._guarantees.is_within(entrant.queue, entrant.depth, demand)",
        "entrant.is_entitled = is_owner",
        "An owner in its queue goes before other organisations, though its own is over its guarantee.",
        (f"{ORDER}test_the_walk_gives_turns_in_the_order_of_the_rule_also_while_it_is_charged_and_lines_are_closed",),
    ),
    Mutant(
        "no_reduction_of_victims",
        f"{POLICY}/preemption/search.py",
        "best = reduction.run(best, is_exact)",
        "pass",
        "Victims are chosen node by node alone, and cost more than they need.",
        (f"{VICTIMS}test_victims_are_the_cheapest_of_all_legal_sets_that_are_enough",),
    ),
    Mutant(
        "no_transport_of_losses",
        f"{POLICY}/preemption/search.py",
        "best = search.transported(ordered)",
        "pass",
        "An owner is denied what is only just feasible.",
        ("tests/policy/test_many_victims.py::test_what_is_just_feasible_is_served_in_any_tree",),
    ),
    Mutant(
        "last_victim_taken_for_the_largest",
        f"{POLICY}/preemption/transportation.py",
        "return sums.choose(fewer, wanted) or self._try(nodes, wanted, [])",
        "return None",
        "An owner is denied where victims differ in size or sit on several nodes.",
        ("tests/policy/test_many_victims.py::test_what_is_just_feasible_is_served_in_any_tree",),
    ),
    Mutant(
        "cpus_not_guaranteed",
        f"{POLICY}/preemption/ledger.py",
        "if dimension in counted and charge.get(dimension):",
        'if dimension == "gpu_milli" and charge.get(dimension):',
        "A reclaim takes CPUs that another queue is guaranteed.",
        (f"{VICTIMS}test_a_reclaim_of_cpus_leaves_every_queue_the_cpus_that_it_is_guaranteed",),
    ),
    Mutant(
        "reservation_checked_once",
        f"{POLICY}/cycle/standard.py",
        "if vacant_ms <= later_ms:",
        "if later_ms:",
        "Victims that need longer than the first ones delay a reservation.",
        (f"{LARGE}test_room_is_made_where_no_reservation_is_delayed_however_long_the_victims_need",),
    ),
    Mutant(
        "one_budget_for_all_windows",
        f"{CORE}/queues/budget.py",
        "for window in range(first, min(last, first + WINDOWS_MAX) + 1):",
        "for window in range(first, first + 1):",
        "A run across two windows takes nothing of the second.",
        (f"{QUOTA}test_each_window_that_a_run_touches_must_have_enough_left_for_its_part",),
    ),
    Mutant(
        "budget_not_committed_in_the_plan",
        f"{CORE}/snapshot.py",
        "self.queues.set_run(gang.queue, gang.id, run, is_next=True)",
        "pass",
        "All gangs that one plan starts may use the same rest of a budget.",
        (judged("099_budget_of_several_reclaims"),),
    ),
    # ---- reservations ---------------------------------------------------------------------------------------
    Mutant(
        "reservation_lost_with_shares",
        f"{POLICY}/cycle/standard.py",
        "overdue or self.heads.before(walk, gang) or gang",
        "overdue or gang",
        "A queue with a smaller share takes what is kept for a large gang, again and again.",
        (f"{RUNS}test_large_gangs_of_a_nested_queue_have_their_share",),
    ),
    Mutant(
        "reservation_beyond_what_is_lent",
        f"{POLICY}/cycle/standard.py",
        "allowed = self.limits.allowed_from(gang, is_barred, self.calendar.reservations)",
        "allowed = None",
        "A start is reserved for a time at which quota does not allow it.",
        (
            f"{RUNS}test_a_reserved_start_is_for_a_time_at_which_nobody_takes_back_what_it_does_not_lend",
            f"{RUNS}test_two_reserved_starts_do_not_count_on_the_same_limit",
        ),
    ),
    Mutant(
        "reservation_lost_over_a_limit",
        f"{POLICY}/cycle/standard.py",
        "self._reserve_again(gang, pool)",
        "pass",
        "A gang that is over its limit for a while loses its reserved start to another.",
        (f"{RUNS}test_a_gang_that_is_over_its_limit_for_a_while_keeps_its_reserved_start",),
    ),
    Mutant(
        "limit_kept_only_for_who_fits",
        f"{POLICY}/cycle/standard.py",
        "self._keep_for_first(walk, gang)",
        "pass",
        "Nothing of a limit is kept for a gang that does not fit at the time either, and it starves.",
        (f"{RUNS}test_sites_that_once_broke_a_promise_keep_it",),
    ),
    Mutant(
        "easy_does_not_count",
        f"{POLICY}/backfill/calendar.py",
        "counts = self._counts_beside(at, gang, here)",
        "counts = None",
        "A reserved start keeps others from GPUs though as many are free elsewhere at that time.",
        ("tests/policy/test_backfill.py::test_a_promised_gpu_may_be_taken_where_another_of_the_node_will_do",),
    ),
    Mutant(
        "growth_onto_reservations",
        f"{POLICY}/cycle/standard.py",
        "bounds = self.calendar.bounds(gang, later_ms=self.snapshot.job(gang).spec.grace_ms)",
        "bounds = FREE",
        "An elastic gang grows onto GPUs that are reserved for another.",
        ("tests/policy/test_elastic.py::test_an_elastic_gang_does_not_grow_onto_what_is_promised_to_somebody",),
    ),
    # ---- reasons --------------------------------------------------------------------------------------------
    Mutant(
        "reserved_seats_called_taken",
        f"{POLICY}/cycle/standard.py",
        "seating, verdict = None, NoSeats.ALL_RESERVED",
        "seating = None",
        "A gang that waits because of a reservation does not say so.",
        (
            "tests/policy/test_explain.py::test_a_gang_that_may_use_its_grace_beyond_a_reserved_start_waits_for_that_start",
        ),
    ),
    Mutant(
        "verdict_of_the_demand_first",
        f"{POLICY}/cycle/closures.py",
        "for each in closed if each is not None and expected >= each[0]",
        "for each in reversed(closed) if each is not None and expected >= each[0]",
        "The reason of a gang is that its demand does not fit, though it is another.",
        ("tests/policy/test_closures.py::test_the_most_specific_verdict_is_told",),
    ),
    # ---- slices, memories, claims ---------------------------------------------------------------------------
    Mutant(
        "slices_charged_as_gpus",
        f"{POLICY}/quota/allowance.py",
        "slice_mib * 1000 // gpu.vram_mib",
        "1000",
        "A slice counts as a whole GPU under a limit.",
        ("tests/policy/test_slices.py::test_a_slice_that_is_a_small_part_of_a_large_gpu_only_goes_to_a_large_one",),
    ),
    Mutant(
        "failed_search_of_a_longer_run",
        f"{POLICY}/preemption/preemptor.py",
        "key = (*key, gang.queue, gang.priority, gang.user, length, name)",
        "key = (*key, gang.queue, gang.priority, gang.user, name)",
        "A long run over the budget keeps a short one of the same shape from taking back.",
        (f"{SEARCHES}test_a_long_run_over_the_budget_does_not_keep_a_short_one_of_the_same_shape_from_taking_back",),
    ),
    Mutant(
        "turn_lost_with_the_claim",
        f"{POLICY}/cycle/standard.py",
        "self.returned.append(gang)",
        "pass",
        "A gang whose claim is dropped has no turn in that plan, and one behind it goes before.",
        ("tests/policy/test_claims.py::test_who_loses_its_claim_goes_before_those_behind_it",),
    ),
)
