"""What is read off Slurm's accounts, what is believed of it, and how often it is asked for. Texts of sacct 22.05."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest

from corral.providers.base import PilotPhase, ProviderRefused, ProviderUnavailable
from corral.providers.slurm import SlurmProvider, SlurmSettings, missing
from corral.providers.slurm.accounting import SlurmAccounting, last_end
from corral.providers.slurm.job_states import describe_record
from corral.providers.slurm.slurm_commands import (
    PROGRAMS,
    SlurmCommands,
    SlurmConfig,
    SlurmJob,
    SlurmJobRecord,
    _read_config,
    _read_record,
)
from tests.providers.test_slurm import ORDER

CANCELLED = "1|corral-c0ffee-gpu-1|CANCELLED by 0|0:0|1794788176"
FAILED = "2|corral-c0ffee-gpu-2|FAILED|3:0|1794788174"
COMPLETED = "3|corral-c0ffee-gpu-3|COMPLETED|0:0|1794788174"
KILLED = "4|corral-c0ffee-gpu-4|FAILED|0:9|1794788174"
PREEMPTED = "7|corral-c0ffee-gpu-7|PREEMPTED|0:0|1794788180"
TIMEOUT = "1|corral-c0ffee-gpu-8|TIMEOUT|0:0|1794788325"
NODE_FAIL = "2|corral-c0ffee-gpu-9|NODE_FAIL|0:0|1794788256"
RUNNING = "9|corral-c0ffee-gpu-1|RUNNING|0:0|Unknown"  # also of a job that is no longer known: a runaway
WRITTEN_OFF = "9|corral-c0ffee-gpu-1|CANCELLED|0:0|1794788187"  # slurmctld -c: while its processes still ran
AGAIN = "1|corral-c0ffee-gpu-1|CANCELLED by 0|0:0|1794788350"  # the number of another, given again
#: Not recorded here: it takes a node whose memory is limited.
OUT_OF_MEMORY = "5|corral-c0ffee-gpu-5|OUT_OF_MEMORY|0:125|1794788174"

CONFIG = """Configuration data as of 2026-11-16T00:16:12
AccountingStorageBackupHost = (null)
AccountingStorageHost   = 127.0.0.1
AccountingStorageType   = accounting_storage/slurmdbd
KillWait                = 15 sec
"""


def record(line: str) -> SlurmJobRecord:
    found = _read_record(line)
    assert found is not None
    return found


def test_a_line_of_the_accounts() -> None:
    assert record(CANCELLED) == SlurmJobRecord(1, "corral-c0ffee-gpu-1", "CANCELLED", 0, 0, 0, 1794788176)
    assert record(KILLED) == SlurmJobRecord(4, "corral-c0ffee-gpu-4", "FAILED", None, 0, 9, 1794788174)
    assert record(RUNNING).ended_s is None
    assert _read_record("9.batch|batch|RUNNING|0:0|Unknown") is None
    assert _read_record("sacct: error: Problem talking to the database: Connection refused") is None


CONFIGS = {
    CONFIG: SlurmConfig(15_000, True),
    CONFIG.replace("accounting_storage/slurmdbd", "accounting_storage/none"): SlurmConfig(15_000, False),
    CONFIG.replace("accounting_storage/slurmdbd", "(null)"): SlurmConfig(15_000, False),
    "": SlurmConfig(30_000, False),
}


@pytest.mark.parametrize(("text", "config"), CONFIGS.items(), ids=["accounts", "none", "nothing set", "nothing said"])
def test_whether_there_are_accounts(text: str, config: SlurmConfig) -> None:
    assert _read_config(text) == config


WHY = {
    CANCELLED: "job 1 was cancelled by root",
    CANCELLED.replace("by 0", "by 3999999999"): "job 1 was cancelled by user 3999999999",
    FAILED: "job 2 failed with exit code 3; see pilot.log in its directory on the node",
    KILLED: "job 4 was killed by signal 9; see pilot.log in its directory on the node",
    COMPLETED: "job 3 completed",
    PREEMPTED: "job 7 was preempted",
    TIMEOUT: "job 1 reached its time limit",
    NODE_FAIL: "job 2 lost its node",
    OUT_OF_MEMORY: "job 5 ran out of memory",
}


@pytest.mark.parametrize(("line", "why"), WHY.items())
def test_why_a_job_is_over(line: str, why: str) -> None:
    assert last_end([record(line)]) == record(line)
    assert describe_record(record(line)) == why


BELIEVED: dict[str, tuple[list[str], str | None]] = {
    "nothing is there": ([], None),
    "what is held to be running says nothing": ([RUNNING], None),
    "what waits says nothing": ([RUNNING.replace("RUNNING", "PENDING")], None),
    "what was written off says nothing": ([WRITTEN_OFF], None),
    "an end without a time says nothing": ([TIMEOUT.replace("1794788325", "Unknown")], None),
    "an end in the year 1970 says nothing": ([TIMEOUT.replace("1794788325", "0")], None),
    "a state of tomorrow says nothing": ([TIMEOUT.replace("TIMEOUT", "TELEPORTED")], None),
    "what is to run again says nothing": ([TIMEOUT.replace("TIMEOUT", "REQUEUED")], None),
    "of two the one that ended last": ([AGAIN, CANCELLED], AGAIN),
    "of two in the other order too": ([CANCELLED, AGAIN], AGAIN),
    "one of two without an end says nothing": ([CANCELLED, RUNNING], None),
    "nor does one that was written off": ([WRITTEN_OFF, AGAIN], None),
}


@pytest.mark.parametrize(("lines", "end"), BELIEVED.values(), ids=BELIEVED.keys())
def test_what_is_believed(lines: list[str], end: str | None) -> None:
    assert last_end([record(line) for line in lines]) == (None if end is None else record(end))


class ScriptedSlurm(SlurmCommands):
    """A controller that knows ``there``, accounts that have ``lines``, and who asked."""

    def __init__(self, *lines: str) -> None:
        super().__init__(SlurmSettings())
        self.lines, self.there = list(lines), list[SlurmJob]()
        self.asked: list[list[str]] = []
        self.submitted: list[Sequence[str]] = []
        self.has_accounts, self.now_s = True, 1000.0
        self.wrong: Exception | None = None

    def jobs(self, names: Sequence[str]) -> list[SlurmJob]:
        return self.there

    def submit(self, words: Sequence[str], script: str) -> int:
        self.submitted.append(words)
        return len(self.submitted)

    def config(self) -> SlurmConfig:
        return SlurmConfig(kill_wait_ms=30_000, has_accounts=self.has_accounts)

    def records(self, names: Sequence[str]) -> list[SlurmJobRecord]:
        self.asked.append(list(names))
        if self.wrong is not None:
            raise self.wrong
        return [found for line in self.lines if (found := record(line)).name in names]

    def accounts(self) -> SlurmAccounting:
        return SlurmAccounting(self, lambda: self.now_s)


ONE, TWO, NEVER = (f"corral-c0ffee-{pilot}" for pilot in ("gpu-1", "gpu-2", "never"))


def test_one_question_for_all_and_not_at_every_look() -> None:
    slurm = ScriptedSlurm(CANCELLED, FAILED)
    accounts = slurm.accounts()
    for _ in range(29):
        assert accounts.ends([ONE, TWO, NEVER]).keys() == {ONE, TWO}
        slurm.now_s += 1
    assert slurm.asked == [[ONE, TWO, NEVER]]
    slurm.now_s += 1
    assert accounts.ends([ONE, TWO, NEVER]).keys() == {ONE, TWO}
    assert slurm.asked[1:] == [[NEVER]], "an end that was found is not asked for again"


def test_no_one_asks_when_nothing_is_unknown() -> None:
    slurm = ScriptedSlurm(CANCELLED)
    accounts = slurm.accounts()
    for _ in range(100):
        assert accounts.ends([]) == {}
        slurm.now_s += 1
    assert slurm.asked == []


def test_one_that_has_just_been_forgotten_does_not_wait_for_the_next_round() -> None:
    slurm = ScriptedSlurm(CANCELLED)
    accounts = slurm.accounts()
    accounts.ends([NEVER])
    slurm.now_s += 1
    assert accounts.ends([NEVER, ONE]) == {}, "but questions are a little apart"
    slurm.now_s += 2
    assert accounts.ends([NEVER, ONE]).keys() == {ONE}
    assert slurm.asked == [[NEVER], [ONE, NEVER]]
    slurm.now_s += 29
    accounts.ends([NEVER, ONE])
    assert len(slurm.asked) == 2, "all that are asked about together are asked about together again"


def test_very_many_are_asked_about_a_part_at_a_time() -> None:
    slurm = ScriptedSlurm()
    accounts, names = slurm.accounts(), [f"corral-c0ffee-gpu-{number}" for number in range(2500)]
    for _ in range(20):
        accounts.ends(names)
        slurm.now_s += 1
    assert [len(asked) for asked in slurm.asked] == [1000, 1000, 1000]
    assert {name for asked in slurm.asked for name in asked} == set(names)


@pytest.mark.parametrize(
    "wrong", [ProviderUnavailable("sacct did not answer within 5 s"), ProviderRefused("Slurm refused: x")]
)
def test_accounts_that_do_not_answer_are_left_alone_for_a_while(
    wrong: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    slurm = ScriptedSlurm(CANCELLED)
    accounts, slurm.wrong = slurm.accounts(), wrong
    with caplog.at_level(logging.WARNING):
        for _ in range(200):
            assert accounts.ends([ONE]) == {}
            slurm.now_s += 1
    assert len(slurm.asked) == 2
    assert [str(wrong) in each.getMessage() for each in caplog.records] == [True], "it is reported once"
    slurm.wrong, slurm.now_s = None, slurm.now_s + 120
    assert accounts.ends([ONE]).keys() == {ONE}


def test_what_is_known_stays_known_while_they_do_not_answer() -> None:
    slurm = ScriptedSlurm(CANCELLED)
    accounts = slurm.accounts()
    accounts.ends([ONE])
    slurm.wrong, slurm.now_s = ProviderUnavailable("away"), slurm.now_s + 60
    assert accounts.ends([ONE, TWO]).keys() == {ONE}


def test_a_cluster_without_accounts_is_not_asked_for_any() -> None:
    slurm = ScriptedSlurm(CANCELLED)
    accounts, slurm.has_accounts = slurm.accounts(), False
    for _ in range(200):
        assert accounts.ends([ONE]) == {}
        slurm.now_s += 1
    assert slurm.asked == []


def test_an_end_is_forgotten_when_slurm_knows_one_of_that_name_again() -> None:
    slurm = ScriptedSlurm(CANCELLED)
    accounts = slurm.accounts()
    assert accounts.ends([ONE]).keys() == {ONE}
    accounts.ends([])
    slurm.lines, slurm.now_s = [CANCELLED, RUNNING], slurm.now_s + 5
    assert accounts.ends([ONE]) == {}


def test_what_the_controller_says_counts_and_the_accounts_fill_in_ends() -> None:
    slurm = ScriptedSlurm(CANCELLED, FAILED, COMPLETED)
    slurm.there = [SlurmJob(9, "RUNNING", "n3", None, "None", "corral:c0ffee:gpu-1")]
    sightings = {each.pilot: each for each in SlurmProvider(SlurmSettings(), "c0ffee", slurm).look(["gpu-1", "gpu-2"])}
    assert (sightings["gpu-1"].phase, sightings["gpu-1"].where) == (PilotPhase.STARTED, "job 9 on n3")
    assert (sightings["gpu-2"].phase, sightings["gpu-2"].where) == (PilotPhase.ENDED, "job 2")
    assert "exit code 3" in sightings["gpu-2"].why
    assert slurm.asked == [[TWO]]


@pytest.mark.parametrize("line", [RUNNING, CANCELLED, WRITTEN_OFF], ids=["runaway", "ended", "written off"])
def test_what_is_only_in_the_accounts_is_submitted_again_and_is_nothing_to_release(line: str) -> None:
    slurm = ScriptedSlurm(line)
    provider = SlurmProvider(SlurmSettings(), "c0ffee", slurm)
    provider.look(["gpu-1"])
    provider.release("gpu-1")
    provider.acquire([ORDER])
    assert len(slurm.submitted) == 1


def test_accounts_are_not_asked_while_the_controller_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = ScriptedSlurm(CANCELLED)

    def away(_names: Sequence[str]) -> list[SlurmJob]:
        raise ProviderUnavailable("away")

    monkeypatch.setattr(slurm, "jobs", away)
    with pytest.raises(ProviderUnavailable):
        SlurmProvider(SlurmSettings(), "c0ffee", slurm).look(["gpu-1"])
    assert slurm.asked == []


def test_sacct_is_not_missed_where_it_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "sacct" not in PROGRAMS
    monkeypatch.setattr("shutil.which", lambda name: None if name == "sacct" else f"/usr/bin/{name}")
    assert missing() == ""


def test_where_accounts_are_kept_and_sacct_is_not_there_it_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    slurm = SlurmCommands(SlurmSettings())
    monkeypatch.setattr(slurm, "config", lambda: SlurmConfig(30_000, True))
    monkeypatch.setenv("PATH", "/nowhere")
    assert SlurmAccounting(slurm).ends([ONE]) == {}
    assert "cannot run sacct: No such file" in caplog.text
