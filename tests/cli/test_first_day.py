"""Small things that met people on a first day: each message fits what happened."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.cli.conftest import Type
from tests.cli.typed import typed

Submit = Callable[..., str]


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("run", "train.py", "--lr", "0.1"), "there is no option --lr\n"),
        (("logs", "--last", "1", "1"), "there is no option --last (did you mean --tail?)\n"),
        (("submit", "--gpuss", "1", "--", "true"), "there is no option --gpuss (did you mean --gpus?)\n"),
        (("queue", "set", "lab", "--parent", "x"), "there is no option --parent\n"),
    ],
)
def test_an_option_is_proposed_only_if_it_may_be_meant(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], meant: str
) -> None:
    assert f"error: {meant}" in typed(capsys, *words).err


def test_a_command_in_quotes_is_not_told_to_begin_with_python_twice(corral: Type) -> None:
    assert "corral run -- python train.py\n" in corral("run", "python train.py").err


def test_a_queue_that_is_not_empty_says_what_is_in_it(corral: Type, submit: Submit) -> None:
    corral("queue", "set", "attic")
    corral("queue", "set", "attic/left")
    done = corral("queue", "remove", "attic")
    assert done.err == "error: queue attic still has the child queue attic/left\n  hint: remove attic/left first\n"
    job = submit("--hold", "--queue", "attic/left", "--", "true")
    done = corral("queue", "remove", "attic/left")
    assert "still has 1 job\n  hint: let its jobs end, or cancel them" in done.err
    corral("cancel", job)


def test_elements_that_wait_for_the_same_are_explained_once(corral: Type, submit: Submit) -> None:
    full = submit("--gpus", "8", "--", "sleep", "600")
    array = submit("--gpus", "1", "--array", "0-19", "--", "true")
    told = corral("why", array).out
    corral("cancel", "--now", full, array)
    assert told.count("needs 1 GPU, 0 are free") == 1
    assert f"{array}[0]/main, {array}[1]/main" in told
    assert "more gangs wait" in told


def test_the_state_of_a_held_array_is_not_that_of_a_cancelled_element(corral: Type, submit: Submit) -> None:
    job = submit("--hold", "--array", "0-3", "--", "true")
    corral("cancel", f"{job}[2]")
    whole, element = corral("show", job).out.splitlines(), corral("show", f"{job}[2]").out.splitlines()
    corral("cancel", job)
    assert "state      waiting (held)" in whole
    assert any(line.startswith("state      cancelled") and "held" not in line for line in element)


def test_a_failure_without_words_has_its_exit_code(corral: Type) -> None:
    done = corral("run", "--", "exit 3")
    assert (done.code, "user error" in done.out + done.err) == (3, False)
    job = json.loads(corral("ps", "--over", "--limit", "1", "--json").out)[0]["id"]
    for words in (("ps", "--over", "--limit", "1"), ("show", job), ("events", "--job", job)):
        assert "user error" not in corral(*words).out
    assert "failed (exit 3)" in corral("ps", "--over", "--limit", "1").out


def test_a_log_that_an_ended_job_does_not_have_is_no_reason_to_wait(corral: Type) -> None:
    assert corral("run", "--", "echo here").code == 0
    job = json.loads(corral("ps", "--over", "--limit", "1", "--json").out)[0]["id"]
    done = corral("logs", job, "--rank", "5")
    assert f"error: job {job} has no rank 5\n  hint: see: corral show {job}" in done.err


def test_a_cordoned_node_is_called_cordoned(corral: Type, submit: Submit) -> None:
    name = json.loads(corral("node", "--json").out)[0]["name"]
    corral("node", "cordon", name)
    job = submit("--gpus", "1", "--", "true")
    told = corral("why", job).out
    corral("node", "uncordon", name)
    corral("wait", job)
    assert f"does not fit without node {name}, which is cordoned\n" in told


def test_a_second_start_says_that_the_first_keeps_its_options(corral: Type) -> None:
    done = corral("up", "--detach", "--fake-gpus", "1xA100")
    assert "is running already" in done.out
    assert "keeps its options" in done.out


def test_an_account_that_is_not_here_is_pointed_out(corral: Type) -> None:
    assert "has no account 'nobodyhere'" in corral("user", "set", "cleo", "--account", "nobodyhere").err
    assert "has no account" not in corral("user", "set", "cleo", "--account", "root").err
    corral("user", "remove", "cleo")


def test_a_store_that_is_not_there_is_named_as_such(corral: Type) -> None:
    assert "there is no directory nosuchfolder" in corral("checkpoint", "show", "nosuchfolder", "job-1").err
    assert "there is no run 'job-1' in '.'" in corral("checkpoint", "show", ".", "job-1").err
