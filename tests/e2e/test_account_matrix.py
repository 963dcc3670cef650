"""Who a task runs as and what it can reach: for servers that are root or not, for every state of its user's account,
and for plain processes and containers. `pytest -s` prints the table.

Whole servers, as root with Podman and as another user with a rootless Podman. Each task that runs tries all that
`probe.py` lists; the last test tries what only the document of a job can name.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.account_server import ANN, PYTHON, SERVER_ACCOUNT, SIGNALS, Cell, has_scopes
from tests.e2e.live import Refused
from tests.runtime.podman import IMAGE, Podman

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start servers as root and as others")

OTHER = "sys"  # an account that every machine has, and neither ann nor ben
KINDS = ("plain", "container")
#: By whether the server is root: the user's account when the job is submitted, what happens to the user while it is
#: queued, and what is seen of the job: at first, and once the user is enabled or an administrator releases the job.
ROOT = {
    "set": (ANN, "", f"ran as {ANN}", ""),
    "none": ("", "", "refused: no_account", ""),
    "removed": (ANN, "removed", "waits: was removed", ""),
    "disabled": (ANN, "disabled", "waits: is disabled", f"ran as {ANN}"),
    "changed while queued": (ANN, "changed", "waits: account", f"ran as {OTHER}"),
}
NOT_ROOT = {
    "set": (SERVER_ACCOUNT, "", f"ran as {SERVER_ACCOUNT}", ""),
    "set to another's": (ANN, "", "refused: cannot_run_as", ""),
    "none": ("", "", f"ran as {SERVER_ACCOUNT}", ""),
    "removed": ("", "removed", "waits: was removed", ""),
    "disabled": ("", "disabled", "waits: is disabled", f"ran as {SERVER_ACCOUNT}"),
    "changed while queued": ("", "changed", "waits: account", "refused: cannot_run_as"),
}
#: In a container the first process is the container's own.
OWN = {"plain": set[str](), "container": {"read the first process"}}


@pytest.mark.parametrize("is_root", [True, False], ids=["the server is root", "the server is not root"])
def test_who_a_task_runs_as_and_what_it_reaches(
    cell: Callable[..., Cell], request: pytest.FixtureRequest, is_root: bool
) -> None:
    engine: Podman = request.getfixturevalue("podman" if is_root else "rootless")
    matrix = Matrix(cell(is_root, engine.socket), ROOT if is_root else NOT_ROOT)
    seen = matrix.run()
    print(table(is_root, seen), file=sys.stderr)
    cases = matrix.cases
    assert {cell: (row["first"], row["then"]) for cell, row in seen.items()} == {
        (state, kind): cases[state][2:] for state in cases for kind in KINDS
    }
    for (state, kind), row in seen.items():
        allowed = OWN[kind] | (SIGNALS if not (is_root or has_scopes() or kind == "container") else set())
        assert row["tried"] >= 30 or "ran" not in row["first"] + row["then"]
        assert set(row["able"]) <= allowed, (state, kind)


class Matrix:
    """All cells on one server: submitted behind a job that has all GPUs, changed, let go, and looked at."""

    def __init__(self, cell: Cell, cases: dict[str, tuple[str, str, str, str]]) -> None:
        self.cell, self.ask, self.cases = cell, cell.server.ask, cases
        self.other = cell.let_ben_run()
        self.blocker = cell.submit("ben", "sleep 1000", gpus=8, preemptible=False)
        cell.state_of(self.blocker)

    def run(self) -> dict[tuple[str, str], dict[str, Any]]:
        jobs: dict[tuple[str, str], str] = {}
        seen: dict[tuple[str, str], dict[str, Any]] = {}
        for state, (account, change, *_) in self.cases.items():
            for kind in KINDS:
                user = user_of(state, kind)
                seen[state, kind] = {"first": "", "then": "", "tried": 0, "able": []}
                try:
                    jobs[state, kind] = self.submit(user, account, kind)
                except Refused as refused:
                    seen[state, kind]["first"] = f"refused: {refused.problem['code']}"
                self.change(user, change)
        self.ask("POST", f"/v1/jobs/{self.blocker}/cancel")
        self.cell.server.until_over([self.blocker])
        for cell, job in jobs.items():
            self.look(job, seen[cell], "first", self.cases[cell[0]][2])
        for cell, job in jobs.items():
            if self.cases[cell[0]][3]:
                self.let_go(user_of(*cell), job, seen[cell], self.cases[cell[0]])
        self.cell.end(self.other)
        return seen

    def submit(self, user: str, account: str, kind: str) -> str:
        self.ask("PUT", f"/v1/users/{user}", {"account": account})
        self.ask("PUT", f"/v1/users/{user}/roles", {"role": "member", "queue": "default"})
        self.cell.tokens[user] = self.ask("POST", "/v1/tokens", {"user": user})["token"]
        return self.cell.submit(user, self.cell.probe(), gpus=1, **(image(self.cell) if kind == "container" else {}))

    def change(self, user: str, change: str) -> None:
        if change == "removed":
            self.ask("DELETE", f"/v1/users/{user}")
        elif change:
            self.ask("PUT", f"/v1/users/{user}", {"disabled": True} if change == "disabled" else {"account": OTHER})

    def look(self, job: str, row: dict[str, Any], name: str, expected: str) -> None:
        if not expected.startswith("waits"):
            over = self.cell.server.until_over([job])[job]
            assert over["state"] == "succeeded", self.cell.log(job, "stderr")
            found = self.cell.found(job)
            row |= {name: f"ran as {found['account']}", "tried": found["tried"], "able": found["able"]}
            return
        end = time.monotonic() + 1
        while time.monotonic() < end:
            assert self.cell.server.job(job)["state"] == "waiting"
            time.sleep(0.05)
        [gang] = self.ask("GET", f"/v1/jobs/{job}/why")["gangs"]
        word = expected.removeprefix("waits: ")
        row[name] = f"waits: {word}" if word in gang["reasons"][0]["text"] else f"waits: {gang['reasons'][0]['text']}"

    def let_go(self, user: str, job: str, row: dict[str, Any], case: tuple[str, str, str, str]) -> None:
        try:
            if case[1] == "disabled":
                self.ask("PUT", f"/v1/users/{user}", {"disabled": False})
            else:
                self.ask("POST", f"/v1/jobs/{job}/release")
        except Refused as refused:
            row["then"] = f"refused: {refused.problem['code']}"
        else:
            self.look(job, row, "then", case[3])


def user_of(state: str, kind: str) -> str:
    return f"{state.split()[0]}{len(state)}-{kind}"


def image(cell: Cell, *mounts: str) -> dict[str, Any]:
    """Of a job in a container that has the machine's Python and the probe."""
    return {
        "image": IMAGE,
        "mounts": [
            "/usr:/usr:ro",
            "/usr/lib:/lib:ro",
            "/usr/lib64:/lib64:ro",
            f"{cell.given}:{cell.given}:ro",
            *mounts,
        ],
    }


def table(is_root: bool, seen: dict[tuple[str, str], dict[str, Any]]) -> str:
    rows = [("server", "account", "kind", "what happens", "then", "tried", "reached of others")]
    server = "root" if is_root else SERVER_ACCOUNT
    for (state, kind), row in seen.items():
        reached = ", ".join(sorted(set(row["able"]) - OWN[kind])) or ("nothing" if row["tried"] else "-")
        rows.append((server, state, kind, row["first"], row["then"] or "-", str(row["tried"] or "-"), reached))
    return "\n" + "\n".join("| " + " | ".join(row) + " |" for row in rows)


@pytest.mark.parametrize("is_root", [True, False], ids=["the server is root", "the server is not root"])
def test_a_job_s_document_names_no_way_to_what_is_kept_from_tasks(
    cell: Callable[..., Cell], request: pytest.FixtureRequest, is_root: bool
) -> None:
    """Mounts and copies of the output are opened by Corral itself, so that namespaces of the task do not help."""
    engine: Podman = request.getfixturevalue("podman" if is_root else "rootless")
    made = cell(is_root, engine.socket)
    other = made.let_ben_run()
    scratch = made.state_of(other).record().order()
    assert scratch is not None
    link = made.given / "link"
    link.symlink_to(made.server.data)
    kept = [made.server.data, made.server.data / "tasks", made.folder, link, scratch.scratch, engine.socket]
    kept += [engine.folder / "storage", engine.folder]
    for place in map(str, kept):
        looks = "cat /mounted/journal.db /mounted/*/journal.db; ls /mounted"
        job = made.submit("ann", looks, **image(made, f"{place}:/mounted"))
        over = made.server.until_over([job])[job]
        assert "SQLite" not in made.log(job)
        said = made.log(job, "stderr")
        if not is_root:  # else it is mounted, where the account may reach it, with no more rights than it has
            assert over["state"] == "failed"
            assert "cannot be mounted" in said, place
    lease = made.server.data / "run" / "lease"
    lease.parent.mkdir(exist_ok=True)
    lease.write_text("untouched")
    lease.chmod(0o600)
    os.chown(lease, made.server.data.stat().st_uid, -1)
    (made.given / "sneaky").symlink_to(lease)
    for path in (lease, lease.with_name("made-by-a-task"), made.given / "sneaky"):
        job = made.submit("ann", f"{PYTHON} -c 'print(\"overwritten\")'", output=str(path))
        assert made.server.until_over([job])[job]["state"] == "succeeded"
    made.end(other)
    assert lease.read_text() == "untouched"
    assert not lease.with_name("made-by-a-task").exists()
