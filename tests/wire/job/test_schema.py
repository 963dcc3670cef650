"""The JSON Schema says what the parser does: what it accepts is valid, and what is plainly wrong is not."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest
from hypothesis import assume, given, settings

from corral.core.model import JobSpec
from corral.wire.job import job_schema, parse_job, read_job_file, write_job
from corral.wire.job.parse import JOB_FILE
from tests.wire.job.specs import is_sound, job_specs
from tests.wire.job.test_files import EXAMPLES
from tests.wire.job.test_parse import WRONG
from tests.wire.job.test_round_trip import DOCUMENTS

VALID = jsonschema_rs.Draft202012Validator(job_schema())


def test_it_is_a_schema() -> None:
    jsonschema_rs.meta.validate(job_schema())


@pytest.mark.parametrize("key", JOB_FILE.keys, ids=lambda key: key.name)
def test_examples_of_keys_are_valid_and_parse(key) -> None:
    document = {"command": "x", key.name: key.example} | ({"name": "n"} if key.name == "singleton" else {})
    document |= {"gpus": 8} if key.name == "tp" else {}
    VALID.validate(document)
    assert isinstance(parse_job(document), JobSpec)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_example_files_are_valid(path) -> None:
    for found in read_job_file(path.read_text(), path.name):
        VALID.validate(found.document)


@settings(deadline=None)
@given(job_specs())
def test_what_is_written_is_valid(spec: JobSpec) -> None:
    assume(is_sound(spec))
    VALID.validate(write_job(spec))


@settings(deadline=None, max_examples=300)
@given(DOCUMENTS)
def test_what_is_accepted_is_valid(document: Any) -> None:
    if isinstance(parse_job(document), JobSpec):
        VALID.validate(document)


PLAINLY = (
    "no mapping", "nothing", "set by the server", "a name with blanks", "a number that is text", "a span without unit",
    "an array as a number", "true is no number", "an unknown class", "a relative directory", "a bad variable",
)  # fmt: skip


@pytest.mark.parametrize("name", PLAINLY)
def test_what_is_plainly_wrong_is_not_valid(name: str) -> None:
    assert not VALID.is_valid(WRONG[name][0])
