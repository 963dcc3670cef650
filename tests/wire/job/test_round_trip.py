"""Laws of the job document: what is written is read back; any JSON at all gives a spec or faults, soon."""

from __future__ import annotations

import time
from typing import Any

import msgspec
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from corral.core.model import JobSpec
from corral.wire.job import parse_job, write_job
from corral.wire.job.keys import GPU_KEYS, WITH_ROLE
from corral.wire.job.parse import JOB_FILE
from tests.wire.job.specs import SCALARS, is_sound, job_specs


@settings(suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow], deadline=None)
@given(job_specs())
def test_what_is_written_is_read_back(spec: JobSpec) -> None:
    assume(is_sound(spec))
    document = write_job(spec)
    assert parse_job(document) == spec
    assert parse_job(msgspec.json.decode(msgspec.json.encode(document))) == spec


KEYS = st.sampled_from(
    [*JOB_FILE.by_name, *WITH_ROLE.by_name, *GPU_KEYS.by_name, "range", "level", "max", "user_error"]
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS | st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
DOCUMENTS = VALUES | st.dictionaries(KEYS, VALUES, max_size=8)


@settings(deadline=None, max_examples=400)
@given(DOCUMENTS)
def test_any_json_gives_a_sound_spec_or_faults(document: Any) -> None:
    found = parse_job(document, now_ms=1)
    if isinstance(found, JobSpec):
        assert is_sound(found)
        assert parse_job(write_job(found)) == found
    else:
        assert found
        assert all(each.code and each.why and str(each) for each in found)


def test_hostile_documents_cost_little() -> None:
    deep: Any = "x"
    for _ in range(100_000):
        deep = [deep]
    keys = {f"key{n}": n for n in range(200_000)}
    hostile: list[Any] = [
        deep, {"command": deep}, {"gangs": deep}, {"env": deep}, keys, {"command": "x", "env": keys},
        {"command": ["x"] * 1_000_000}, {"command": "x" * 10_000_000}, {"command": "x", "array": "0-999999999"},
        {"command": "x", "array": "1," * 5_000_000}, {"command": "x", "labels": {"x" * 1_000_000: "y"}},
        {"command": "x", "gangs": [{}] * 100_000}, {"command": "x", "time_limit": "1" * 1_000_000},
        {"command": "x", "gpus": 10**5000}, {"command": "x", "priority": float("nan")},
        {"command": "x", "after": [[]] * 999},
        {"x" * 10_000_000: 1}, {"command": "x", "name": "a" * 10_000_000}, {"command": "x", "begin": "9" * 59},
    ]  # fmt: skip
    for document in hostile:
        begin = time.process_time()
        found = parse_job(document)
        assert isinstance(found, list)
        assert 0 < len(found) <= 50
        assert sum(len(str(each)) for each in found) < 100_000
        assert time.process_time() - begin < 1.5
