"""From symptoms to verdicts: how often, how long, and what a probe or an operator is needed for."""

import pytest
from msgspec.structs import replace

from corral.core.model import FailureClass, Health
from corral.health.judgement import HealthRecord, cleared, judge, probed, wants_probe
from corral.health.lemons import End, lemon
from corral.health.readings import ProbeReading
from corral.health.rules import Symptom
from corral.wire.health import DAY_MS, HOUR_MS, MINUTE_MS, HealthSettings

SETTINGS = HealthSettings()
QUIET_MS = SETTINGS.quiet_ms
HEALTHY, SUSPECT, DRAINING, FAILED = Health
HOT = Symptom("hot", SUSPECT, "91 °C")
XID = Symptom("xid 79", FAILED, "Xid 79: gone")
ECC = Symptom("uncorrected", DRAINING, "1 memory error")
PASSED, BROKEN, UNTRIED = ProbeReading(True), ProbeReading(False, "wrong product"), ProbeReading(None, "no torch")


def seen(sheet: HealthRecord, *looks: list[Symptom], from_ms: int = 0, every_ms: int = 10_000) -> HealthRecord:
    for n, symptoms in enumerate(looks):
        sheet = judge(sheet, symptoms, from_ms + n * every_ms, SETTINGS)
    return sheet


LOOKS = {
    "once hot is nothing": ([[HOT]], HEALTHY),
    "twice of five is nothing": ([[HOT], [], [HOT], [], []], HEALTHY),
    "three of five is suspect": ([[HOT], [], [HOT], [], [HOT]], SUSPECT),
    "three, but too far apart": ([[HOT], [], [], [HOT], [], [], [HOT]], HEALTHY),
    "one Xid is enough": ([[XID]], FAILED),
    "one memory error is enough": ([[ECC]], DRAINING),
    "the worst of several": ([[ECC, XID]], FAILED),
    "a lesser one after a worse one": ([[XID], [ECC]], FAILED),
    "a worse one after a lesser one": ([[ECC], [XID]], FAILED),
}


@pytest.mark.parametrize(("looks", "expected"), LOOKS.values(), ids=LOOKS)
def test_after_these_looks(looks, expected):
    assert seen(HealthRecord(), *looks).health is expected


def test_what_was_wrong_must_be_gone_for_a_while():
    sheet = seen(HealthRecord(), [HOT], [HOT], [HOT])
    assert judge(sheet, [], 20_000 + QUIET_MS - 1, SETTINGS).health is SUSPECT
    sheet = judge(sheet, [], 20_000 + QUIET_MS, SETTINGS)
    assert (sheet.health, sheet.why) == (HEALTHY, "healthy again; before: 91 °C")


def test_the_words_of_a_verdict_stay_while_the_numbers_change():
    sheet = seen(HealthRecord(), [HOT], [HOT], [HOT], [Symptom("hot", SUSPECT, "97 °C")])
    assert sheet.why == "91 °C"


def test_between_looks_nothing_else_is_touched():
    sheet = seen(HealthRecord(), [HOT], [HOT])
    sheet = judge(sheet, [XID], 12_000, SETTINGS, is_look=False)
    assert sheet.health is FAILED
    assert sheet.tracks["hot"].hits == 0b11


def test_a_clock_that_is_set_back_does_not_keep_a_gpu_out_for_ever():
    sheet = seen(HealthRecord(), [HOT], [HOT], [HOT], from_ms=DAY_MS)
    sheet = judge(sheet, [], 1_000, SETTINGS)
    assert judge(sheet, [], 1_000 + QUIET_MS, SETTINGS).health is HEALTHY


def fallen() -> HealthRecord:
    """It failed, and has been quiet since."""
    return seen(seen(HealthRecord(), [XID]), [], from_ms=QUIET_MS)


def test_what_failed_comes_back_only_after_a_probe():
    sheet = fallen()
    assert (sheet.health, sheet.is_quiet) == (FAILED, True)
    sheet = seen(sheet, [], [], from_ms=10 * QUIET_MS)
    assert sheet.health is FAILED
    assert wants_probe(sheet, 10 * QUIET_MS, SETTINGS)
    sheet = probed(sheet, PASSED, 10 * QUIET_MS, SETTINGS)
    assert (sheet.health, sheet.why) == (HEALTHY, "a probe passed; before: Xid 79: gone")
    assert not wants_probe(sheet, 10 * QUIET_MS + 1, SETTINGS)


def test_nothing_is_tried_while_it_is_still_wrong():
    sheet = seen(HealthRecord(), [XID])
    assert not wants_probe(sheet, QUIET_MS - 1, SETTINGS)
    assert probed(sheet, PASSED, 1_000, SETTINGS).health is FAILED


def test_a_probe_that_fails_fails_the_gpu_and_is_repeated_later():
    sheet = probed(HealthRecord(), BROKEN, 5_000, SETTINGS)
    assert (sheet.health, sheet.why) == (FAILED, "a probe failed: wrong product")
    assert not wants_probe(sheet, 5_000 + SETTINGS.probe_retry_ms - 1, SETTINGS)
    assert wants_probe(sheet, 5_000 + SETTINGS.probe_retry_ms, SETTINGS)
    assert seen(sheet, [], from_ms=DAY_MS).health is FAILED
    again = probed(sheet, ProbeReading(False, "another wrong product"), DAY_MS, SETTINGS)
    assert again.why == sheet.why, "the same again is no news"


def test_without_a_way_to_try_it_a_suspect_is_believed_and_a_failed_one_is_not():
    suspect = seen(seen(HealthRecord(), [Symptom("xid 63", SUSPECT, "Xid 63")]), [], from_ms=QUIET_MS)
    assert suspect.health is SUSPECT
    assert probed(suspect, UNTRIED, QUIET_MS, SETTINGS).health is HEALTHY
    assert probed(fallen(), UNTRIED, QUIET_MS, SETTINGS).health is FAILED


SPEEDS = {
    "as fast as ever": (ProbeReading(True, gflops=990, mib_per_s=2_000), HEALTHY, ""),
    "a little slower": (ProbeReading(True, gflops=800, mib_per_s=1_600), HEALTHY, ""),
    "slow at matrices": (
        ProbeReading(True, gflops=790, mib_per_s=2_000), FAILED,
        "a probe failed: matrices at 790 GFLOP/s, 79 % of the best result (1,000)",
    ),
    "slow memory": (
        ProbeReading(True, gflops=1_000, mib_per_s=1_000), FAILED,
        "a probe failed: memory at 1,000 MiB/s, 50 % of the best result (2,000)",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("reading", "health", "why"), SPEEDS.values(), ids=SPEEDS)
def test_a_probe_is_compared_with_the_best_so_far(reading, health, why):
    sheet = probed(HealthRecord(), ProbeReading(True, gflops=1_000, mib_per_s=2_000), 1, SETTINGS)
    sheet = probed(sheet, reading, 2, SETTINGS)
    assert (sheet.health, sheet.why) == (health, why)


def test_healthy_gpus_are_tried_now_and_then():
    assert not wants_probe(HealthRecord(probed_ms=1), DAY_MS, SETTINGS)
    assert wants_probe(HealthRecord(probed_ms=1), DAY_MS + 1, SETTINGS)
    assert not wants_probe(HealthRecord(probed_ms=1), 9 * DAY_MS, HealthSettings(probe_every_ms=0))
    assert not wants_probe(fallen(), QUIET_MS, HealthSettings(probes=False))


def test_a_gpu_that_falls_again_and_again_stays_out_until_an_operator_clears_it():
    sheet, now_ms = HealthRecord(), 0
    for _ in range(SETTINGS.relapses_max):
        sheet = seen(sheet, [XID], from_ms=now_ms)
        now_ms += QUIET_MS
        sheet = probed(seen(sheet, [], from_ms=now_ms), PASSED, now_ms, SETTINGS)
        assert sheet.health is HEALTHY
    sheet = seen(sheet, [XID], from_ms=now_ms)
    assert sheet.why == "Xid 79: gone; 4 times within 1d: out of service until an operator clears it"
    later = seen(sheet, [], from_ms=now_ms + 9 * DAY_MS)
    assert later.health is FAILED
    assert not wants_probe(later, now_ms + 9 * DAY_MS, SETTINGS)
    assert probed(later, PASSED, now_ms + 9 * DAY_MS, SETTINGS).health is FAILED
    assert cleared(later, now_ms + 9 * DAY_MS).health is HEALTHY


def test_falls_that_are_long_past_are_forgotten():
    sheet = HealthRecord(falls=(0, 1, 2), health=HEALTHY)
    assert not seen(sheet, [XID], from_ms=2 * DAY_MS).is_latched


# ---- lemons --------------------------------------------------------------------------------------------------------


def ends(
    unit: str, failed: int, fine: int, failure: FailureClass = FailureClass.GPU_FAULT, users: int = 4, gang: str = ""
) -> list[End]:
    """The failed ones are spread evenly among the others."""
    apart_ms = (failed + fine) // max(failed, 1)
    bad = [
        End(MINUTE_MS + n * apart_ms, gang or f"{unit}-bad-{n}/main", (unit,), failure, f"u{n % users}")
        for n in range(failed)
    ]
    return bad + [End(MINUTE_MS + n, f"{unit}-fine-{n}/main", (unit,), None, f"u{n % users}") for n in range(fine)]


def well_after(failed: list[End]) -> list[End]:
    """The same jobs run again on another machine, and fare well there."""
    return [replace(end, at_ms=end.at_ms + HOUR_MS, units=("b",), failure=None) for end in failed]


def moved(jobs: int) -> list[End]:
    """Jobs of one user that failed on another machine, and then ran well here."""
    failed = [End(n, f"moved-{n}/main", ("b",), FailureClass.GPU_FAULT, "mover") for n in range(jobs)]
    return failed + [replace(end, units=("a",), failure=None) for end in failed]


def later(history: list[End], hours: int) -> list[End]:
    return [replace(end, at_ms=end.at_ms + hours * HOUR_MS) for end in history]


WELL = ends("b", 0, 50)
MANY_WELL = later(ends("b", 0, 2_000), 5)
FAIR = later(ends("b", 20, 980, users=6), 5)  # 2 of 100 jobs meet faults, and are not run again
USER_ERROR = FailureClass.USER_ERROR
LEMONS = {
    "nothing ever failed": (ends("a", 0, 100) + WELL, False),
    "faults that the work of four users met, and elsewhere none": (ends("a", 5, 6) + WELL, True),
    "three faults": (ends("a", 3, 6) + WELL, False),
    "a hundred faults of one user's work": (ends("a", 100, 6, users=1) + WELL, False),
    "a hundred faults of two users' work": (ends("a", 100, 6, users=2) + WELL, False),
    "faults of one gang": (ends("a", 4, 6, gang="same/main", users=1) + WELL, False),
    "faults of unknown origin": (
        [End(MINUTE_MS, f"{n}/main", ("a",), FailureClass.GPU_FAULT) for n in range(9)] + WELL,
        False,
    ),
    "a program of each user that fails elsewhere as well": (
        ends("a", 6, 4) + [replace(end, units=("b",)) for end in ends("a", 6, 0)] + WELL,
        False,
    ),
    "a few among very many": (ends("a", 4, 400) + WELL, False),
    "faults one after the other, after very many that ran well": (
        ends("a", 0, 400) + [replace(end, at_ms=2 * MINUTE_MS) for end in ends("a", 5, 0)] + WELL,
        True,
    ),
    "programs that fail between the faults say nothing for the machine": (
        ends("a", 4, 4)
        + [replace(end, gang=f"x{n}/main") for n, end in enumerate(ends("a", 40, 0, USER_ERROR))]
        + WELL,
        True,
    ),
    "programs that fail": (ends("a", 100, 2, USER_ERROR) + WELL, False),
    "nothing is known of other places": (ends("a", 20, 0) + ends("b", 0, 9), False),
    "the same users meet them elsewhere as well": (ends("a", 6, 4) + ends("b", 40, 40), False),
    "three faults of jobs that ran well elsewhere afterwards": (
        ends("a", 3, 6) + well_after(ends("a", 3, 0)) + WELL,
        False,
    ),
    "faults among many that ran well, of jobs that were not run again": (ends("a", 6, 18, users=6) + FAIR, False),
    "faults among many that ran well, of jobs that ran well elsewhere afterwards": (
        ends("a", 6, 18, users=6) + well_after(ends("a", 6, 0, users=6)) + FAIR,
        True,
    ),
    "faults beside work of a user that failed on another machine, and then ran well here": (
        ends("a", 6, 6) + MANY_WELL + later(moved(400), 10),
        True,
    ),
    "four faults among many jobs of a user that ran well here, and mostly fail elsewhere": (
        ends("a", 4, 0)
        + [End(MINUTE_MS, f"bad-{n}/main", ("a",), None, "bad") for n in range(100)]
        + [End(5 * HOUR_MS, f"x{n}/main", ("b",), FailureClass.NETWORK, "bad") for n in range(100)]
        + FAIR,
        False,
    ),
    "an hour in which work fails everywhere": (ends("a", 6, 2) + ends("b", 60, 20, users=40) + MANY_WELL, False),
    "the same faults in an hour in which work fares well elsewhere": (ends("a", 6, 2) + MANY_WELL, True),
    "who was preempted says nothing": (ends("a", 9, 0, FailureClass.PREEMPTED) + WELL, False),
}


@pytest.mark.parametrize(("history", "expected"), LEMONS.values(), ids=LEMONS)
def test_a_lemon(history, expected):
    symptom = lemon("a", history, 0, SETTINGS)
    assert (symptom is not None) is expected
    assert symptom is None or symptom.health is SUSPECT


def test_a_lemon_is_reported_with_its_numbers_and_what_is_long_past_does_not_count():
    history = ends("a", 5, 6) + WELL
    symptom = lemon("a", history, 0, SETTINGS)
    assert symptom is not None
    assert symptom.why == (
        "jobs of 4 users hit machine faults here within 3d (5 of 11 jobs; 0 of 50 elsewhere), and succeed elsewhere"
    )
    assert lemon("a", history, 2 * MINUTE_MS, SETTINGS) is None
    assert lemon("a", history, 0, HealthSettings(lemon_failures=0)) is None
