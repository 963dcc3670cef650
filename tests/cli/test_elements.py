"""Parts of jobs, and many jobs, typed as people type them: exactly those change."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.cli.conftest import Type


@pytest.fixture
def array(submit: Callable[..., str], corral: Type) -> Callable[..., str]:
    """Submits a held array of ten elements; its number."""
    made: list[str] = []

    def submitted(*words: str) -> str:
        made.append(submit("--hold", "--array", "0-9", *words, "--", "sleep", "60"))
        return made[-1]

    return submitted


def states(corral: Type, job: str) -> list[str]:
    return [gang["state"] for gang in json.loads(corral("show", "--json", job).out)["gangs"]]


def elements(corral: Type, job: str) -> dict[int, str]:
    return {gang["index"]: gang["state"] for gang in json.loads(corral("show", "--json", job).out)["gangs"]}


def test_cancel_of_an_element_cancels_that_element(corral: Type, array: Callable[..., str]) -> None:
    job = array()
    done = corral("cancel", f"{job}[7]")
    assert (done.code, done.out) == (0, f"job {job}[7] is cancelled\n")
    assert [index for index, state in elements(corral, job).items() if state == "cancelled"] == [7]
    assert corral("cancel", f"{job}[1,4-6]").code == 0
    assert [index for index, state in elements(corral, job).items() if state == "cancelled"] == [1, 4, 5, 6, 7]
    assert corral("cancel", f"{job}_2").code == 0  # as Slurm writes it
    assert elements(corral, job)[2] == "cancelled"
    corral("cancel", job)


def test_hold_release_and_priority_of_elements(corral: Type, array: Callable[..., str]) -> None:
    job = array()
    assert corral("release", f"{job}[3-4]").out == f"job {job}[3-4] is released\n"
    held = {gang["index"] for gang in json.loads(corral("show", "--json", job).out)["gangs"] if gang["held"]}
    assert held == set(range(10)) - {3, 4}
    assert corral("hold", f"{job}[4]").code == 0
    assert f"error: {job}[4] has ended, or is held already" in corral("hold", f"{job}[4]").err
    assert corral("priority", "5", f"{job}[8]").out == f"job {job}[8] has priority 5\n"
    found = {gang["index"]: gang for gang in json.loads(corral("show", "--json", job).out)["gangs"]}
    assert [index for index, gang in found.items() if gang["priority"] == 5] == [8]
    assert found[4]["held"]
    assert not found[3]["held"]
    why = corral("why", f"{job}[5]")
    assert f"job {job}[5] is held; release it with: corral release {job}[5]" in why.out
    corral("cancel", job)


def test_a_role_is_named_after_a_slash(corral: Type, submit: Callable[..., str], at_home, tmp_path) -> None:
    (tmp_path / "two.yaml").write_text(
        "hold: true\ngangs:\n- {role: trainer, command: sleep 60}\n- {role: server, command: sleep 60}\n"
    )
    job = submit("two.yaml")
    assert corral("cancel", f"{job}/trainer").out == f"job {job}/trainer is cancelled\n"
    found = {gang["role"]: gang["state"] for gang in json.loads(corral("show", "--json", job).out)["gangs"]}
    assert found == {"trainer": "cancelled", "server": "waiting"}
    refused = corral("hold", f"{job}/usher")
    assert refused.code != 0
    assert f"job {job} has no role 'usher'" in refused.err
    assert "trainer, server" in refused.err
    assert [gang["role"] for gang in json.loads(corral("show", "--json", f"{job}/server").out)["gangs"]] == ["server"]
    corral("cancel", job)


def test_show_why_events_and_wait_take_elements(corral: Type, array: Callable[..., str]) -> None:
    job = array()
    shown = json.loads(corral("show", "--json", f"{job}[3-5]").out)
    assert [gang["index"] for gang in shown["gangs"]] == [3, 4, 5]
    assert shown["id"] == f"{job}[3-5]"
    corral("cancel", f"{job}[5]")
    assert json.loads(corral("show", "--json", f"{job}[5]").out)["state"] == "cancelled"
    told = corral("events", "--job", f"{job}[5]").out
    assert f"{job}[5] cancelled" in told
    assert f"{job}[4]" not in told
    waited = corral("wait", f"{job}[5]", "--timeout", "30s")
    assert f"job {job}[5] was cancelled" in waited.err
    assert corral("wait", f"{job}[4]", "--timeout", "1s").code == 124
    assert f"{job}[4]/main" in corral("why", f"{job}[4]").out
    corral("cancel", job)


MISTAKES = {
    "an element that is not there": ("{job}[70]", "has no element 70"),
    "a part that is not there": ("{job}[3,50-60]", "has no element 50-60"),
    "no index": ("{job}[]", "is not a job"),
    "an empty range": ("{job}[9-3]", "the range 9-3 is empty"),
    "no number": ("train", "is not a job"),
}


@pytest.mark.parametrize(("name", "told"), MISTAKES.values(), ids=MISTAKES)
@pytest.mark.parametrize("command", ["cancel", "hold", "release", "requeue", "show", "why", "wait"])
def test_a_wrong_name_changes_nothing(
    corral: Type, array: Callable[..., str], name: str, told: str, command: str
) -> None:
    job = array()
    done = corral(command, name.format(job=job))
    assert done.code != 0
    assert told in done.err
    assert set(states(corral, job)) == {"waiting"}
    corral("cancel", job)


def test_filters_change_all_that_match_in_one_request(corral: Type, submit: Callable[..., str]) -> None:
    jobs = [submit("--hold", "--name", "sweep-a", "--label", "p=x", "--", "true") for _ in range(3)]
    other = submit("--hold", "--name", "other", "--", "true")
    asked = corral("cancel", "--name", "sweep-*")
    assert asked.code != 0
    assert "this would cancel 3 jobs" in asked.err
    assert "--yes" in asked.err
    assert corral("cancel", "--name", "sweep-*", "--state", "waiting", "--yes").out == "3 jobs are cancelled\n"
    assert {json.loads(corral("show", "--json", job).out)["state"] for job in jobs} == {"cancelled"}
    assert json.loads(corral("show", "--json", other).out)["state"] == "waiting"
    assert "no jobs match" in corral("cancel", "--name", "sweep-*", "--yes").err
    assert corral("release", "--label", "p=x", "--yes").code == 0
    assert corral("priority", "3", "--name", "other", "--yes").out == "1 job has priority 3\n"
    assert corral("cancel", "--all", "--before", "1h", "--yes").code == 0  # none is so old
    assert json.loads(corral("show", "--json", other).out)["state"] == "waiting"
    assert corral("cancel", "--all", "--yes").code == 0
    assert json.loads(corral("show", "--json", other).out)["state"] == "cancelled"


def test_several_names_are_changed_even_if_some_are_refused(corral: Type, submit: Callable[..., str]) -> None:
    first, second = submit("--hold", "--", "true"), submit("--hold", "--", "true")
    done = corral("cancel", first, "999999", second)
    assert done.out == f"job {first} is cancelled\njob {second} is cancelled\n"
    assert "there is no job '999999'" in done.err
    assert done.code != 0


@pytest.mark.parametrize("words", [("cancel",), ("cancel", "3", "--all"), ("cancel", "--state", "failed", "--yes")])
def test_a_change_of_nothing_or_of_what_has_ended_is_a_mistake(corral: Type, words: tuple[str, ...]) -> None:
    done = corral(*words)
    assert done.code != 0
    assert done.err
