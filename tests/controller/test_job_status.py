"""The status of a `CorralJob`: what is written, and that nothing is written while nothing happens."""

from __future__ import annotations

from msgspec.structs import replace

from corral.controller.job_status import camel, patch_from, refused, status_of
from corral.wire.api.jobs import JobSummary
from corral.wire.api.words import JobState

WAITS = JobSummary(
    "7", "train", "lab", "k8s", 0, JobState.WAITING, False, 0, gpus=8, reason="no GPUs are free", starts_ms=100_000_000
)


def test_what_has_no_value_is_removed_and_equal_statuses_need_no_patch():
    waits = status_of(WAITS, "d", 1, {}, 1_000)
    shown = {name: each for name, each in waits.items() if each is not None}
    assert (patch_from({}, waits) or {})["expectedStart"] == "1970-01-02T03:46:40Z"
    assert patch_from(shown, status_of(WAITS, "d", 1, shown, 9_000)) is None
    runs = replace(WAITS, state=JobState.RUNNING, started_ms=5_000, nodes=("a", "b"), nodes_held=2, reason="")
    patch = patch_from(shown, status_of(runs, "d", 1, shown, 9_000)) or {}
    assert (patch["expectedStart"], patch["phase"], patch["nodesTotal"]) == (None, "Running", 2)


def test_a_condition_keeps_the_time_of_its_last_change():
    first = status_of(WAITS, "d", 1, {}, 1_000)
    later = status_of(replace(WAITS, reason="another"), "d", 1, first, 60_000)
    times = {each["type"]: each["lastTransitionTime"] for each in later["conditions"]}
    assert times == {"Accepted": "1970-01-01T00:00:01Z", "Running": "1970-01-01T00:00:01Z"}
    runs = status_of(replace(WAITS, state=JobState.RUNNING), "d", 1, later, 61_000)
    assert {each["type"]: each["lastTransitionTime"] for each in runs["conditions"]}[
        "Running"
    ] == "1970-01-01T00:01:01Z"


def test_an_expected_start_that_moves_by_seconds_stays_as_it_was():
    known = status_of(WAITS, "d", 1, {}, 0)
    assert status_of(replace(WAITS, starts_ms=100_020_000), "d", 1, known, 0)["expectedStart"] == known["expectedStart"]
    assert status_of(replace(WAITS, starts_ms=100_090_000), "d", 1, known, 0)["expectedStart"] != known["expectedStart"]
    assert status_of(WAITS, "d", 1, {"expectedStart": "soon"}, 0)["expectedStart"] == "1970-01-02T03:46:40Z"


def test_the_end_is_a_condition_of_its_own():
    ends = replace(WAITS, state=JobState.FAILED, ended_ms=9_000, exit_code=137, failure="out_of_memory", attempts=3)
    status = status_of(ends, "d", 2, {}, 10_000)
    assert (status["exitCode"], status["failure"], status["restarts"]) == (137, "out_of_memory", 2)
    assert status["conditions"][-1]["type"] == "Failed"
    assert status["conditions"][-1]["reason"] == "OutOfMemory"
    done = status_of(replace(WAITS, state=JobState.SUCCEEDED, ended_ms=9_000), "d", 2, {}, 0)
    assert [each["type"] for each in done["conditions"]] == ["Accepted", "Running", "Complete"]


def test_reasons_are_words_of_kubernetes_and_texts_are_bounded():
    assert camel("no_such_queue") == "NoSuchQueue"
    assert camel("<script>") == "Refused"
    assert len(refused("x" * 5_000, "c", 1, {}, 0)["reason"]) == 1_000
