"""What Python shows of the clients: signatures, types and help; and the ids and directories that they take."""

from __future__ import annotations

import inspect
import pydoc
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from corral.client import AsyncClient, Client, NotFound
from corral.client.calls import Calls
from corral.wire.api.jobs import JobView
from tests.client.conftest import Both
from tests.client.fake import Fake, Reply, problem
from tests.client.test_client import SUBMITTED, job

METHODS = sorted(
    name
    for part in Calls.__mro__
    for name in vars(part)
    if not name.startswith("_") and callable(getattr(Client, name))
)


def test_there_are_methods() -> None:
    assert {"submit", "jobs", "job", "wait", "logs", "queues", "nodes", "whoami"} <= set(METHODS)


@pytest.mark.parametrize("owner", [Client, AsyncClient])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_signature_with_types_and_a_docstring(owner: type, name: str) -> None:
    method = getattr(owner, name)
    signature = inspect.signature(method)
    first, *others = signature.parameters.values()
    assert first.name == "self"
    assert all(each.annotation is not each.empty for each in others)
    assert all(each.kind is not each.VAR_KEYWORD for each in others)
    assert signature.return_annotation is not signature.empty
    assert not any(word in str(signature) for word in ("ApiCall", "Talk[", "Series["))
    assert method.__doc__
    assert get_type_hints(method)["return"] is not None


def test_help_shows_the_parameters() -> None:
    text = pydoc.plain(pydoc.render_doc(Client.submit))
    assert "submit(self, document: " in text
    assert "key: " in text
    whole = pydoc.plain(pydoc.render_doc(Client))
    assert "submit(self, document: " in whole


def test_a_method_of_an_object_does_not_show_self(fake: Fake) -> None:
    with Client(fake.url, "secret") as client:
        assert list(inspect.signature(client.job).parameters) == ["job"]
        assert issubclass(get_type_hints(client.job)["return"], JobView)
    assert list(inspect.signature(AsyncClient(fake.url, "secret").job).parameters) == ["job"]


def test_methods_of_the_asynchronous_client_are_coroutines_and_asynchronous_iterators() -> None:
    assert inspect.iscoroutinefunction(AsyncClient.submit)
    assert not inspect.iscoroutinefunction(Client.submit)
    assert "AsyncGenerator" in str(inspect.signature(AsyncClient.jobs).return_annotation)
    assert "AsyncGenerator" not in str(inspect.signature(Client.jobs).return_annotation)


# ---- ids -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["job", "why", "cancel", "hold", "release", "requeue", "wait"])
def test_a_number_is_an_id(fake: Fake, client: Both, method: str) -> None:
    why = {"job": "9999", "state": "succeeded", "at_ms": 1, "gangs_waiting": 0, "gangs": []}
    fake.on("GET", "/v1/jobs/9999", Reply(job("9999", state="succeeded")))
    fake.on("GET", "/v1/jobs/9999/why", Reply(why))
    fake.on("GET", "/v1/events", Reply({"events": [], "next": 0, "head": 0}))
    for verb in ("cancel", "hold", "release", "requeue"):
        fake.on("POST", f"/v1/jobs/9999/{verb}", Reply({"seq": 4}))
    assert client(method, 9999) is not None


def test_a_job_that_is_not_there_is_not_found(fake: Fake, client: Both) -> None:
    told = problem(404, "no_such_job", detail="there is no job 9999", hint="corral ps lists jobs")
    fake.on("GET", "/v1/jobs/9999", told)
    with pytest.raises(NotFound, match="there is no job 9999"):
        client("job", 9999)


@pytest.mark.parametrize("wrong", [None, "", 3.5, True, -1, b"17"])
def test_what_cannot_be_an_id_is_told_before_anything_is_sent(fake: Fake, client: Both, wrong: Any) -> None:
    with pytest.raises(TypeError, match="id of a job"):
        client("job", wrong)
    assert fake.seen == []


def test_logs_and_events_take_numbers_too(fake: Fake, client: Both) -> None:
    head = {"Corral-Log-Gang": "main", "Corral-Log-Attempt": "1", "Corral-Log-Offset": "0", "Corral-Log-Next": "2"}
    fake.then("GET", "/v1/jobs/17/logs", Reply(b"hi", headers=head), Reply(b"", headers=head))
    assert [part.data for part in client.all("logs", 17)] == [b"hi"]
    fake.on("GET", "/v1/events", Reply({"events": [], "next": 0, "head": 0}))
    assert client.all("events", job=17) == []
    assert fake.seen[-1].query["job"] == "17"


# ---- the directory ---------------------------------------------------------------------------------------------------


def submitted(fake: Fake, client: Both, method: str, document: Any) -> Any:
    fake.on("POST", "/v1/jobs", Reply(SUBMITTED, 201))
    fake.on("POST", "/v1/jobs/batch", Reply({"jobs": [SUBMITTED]}, 201))
    client(method, document)
    return fake.seen[-1].body


def test_a_job_runs_where_the_program_that_submits_it_runs(
    fake: Fake, client: Both, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert submitted(fake, client, "submit", {"command": "true"})["directory"] == str(tmp_path)
    [first, second] = submitted(
        fake, client, "submit_many", [{"command": "true"}, {"command": "x", "directory": "/x"}]
    )["jobs"]
    assert first["directory"] == str(tmp_path)
    assert second["directory"] == "/x"


@pytest.mark.parametrize(("given", "sent"), [("runs/a", "{here}/runs/a"), ("~/a", "~/a"), ("/data", "/data")])
def test_a_relative_directory_is_relative_to_it(
    fake: Fake, client: Both, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: str, sent: str
) -> None:
    monkeypatch.chdir(tmp_path)
    body = submitted(fake, client, "submit", {"command": "true", "directory": given})
    assert body["directory"] == sent.format(here=tmp_path)


def test_the_document_of_the_caller_is_not_changed(fake: Fake, client: Both) -> None:
    document = {"command": "true"}
    submitted(fake, client, "submit", document)
    assert document == {"command": "true"}
