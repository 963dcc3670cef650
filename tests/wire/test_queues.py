"""Queues as documents: units, what is wrong, and that writing and reading are inverse."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.core.cluster.resources import amounts
from corral.core.model import Budget, QueueSpec, QuotaChange
from corral.wire.durations import MOST_MS
from corral.wire.queues import GPU_HOURS_MAX, HOUR_MS, parse_queue, write_queue

NAMES = st.sampled_from(["gpu_milli", "cpu_milli", "memory_mib", "disk_mib", "gpu_milli:H100", "licence"])


def stated(least: int) -> st.SearchStrategy[Any]:
    return st.dictionaries(NAMES, st.integers(least, 10**9), max_size=4).map(amounts)


@st.composite
def changes(draw: st.DrawFn) -> QuotaChange:
    begin = draw(st.integers(0, 10**13))
    return QuotaChange(begin, begin + draw(st.integers(1, 10**12)), draw(stated(-(10**9))), draw(stated(-(10**9))))


QUEUES = st.builds(
    QueueSpec,
    name=st.from_regex(r"[a-z][a-z0-9]{0,5}(/[a-z0-9]{1,5}){0,2}", fullmatch=True),
    guarantee=stated(0),
    limit=stated(0),
    lend=stated(0),
    weight=st.integers(1, 100),
    user_limit=stated(0),
    max_jobs=st.none() | st.integers(0, 10**9),
    max_jobs_per_user=st.none() | st.integers(0, 10**9),
    budget=st.none()
    | st.builds(Budget, st.integers(1, GPU_HOURS_MAX * HOUR_MS), st.integers(1, MOST_MS), st.integers(0, 10**13)),
    changes=st.lists(changes(), max_size=2).map(tuple),
    priority_ceiling=st.none() | st.integers(-1000, 1000),
    time_share=st.integers(0, 100),
)


@given(QUEUES)
def test_what_is_written_is_read_back(spec: QueueSpec) -> None:
    assert parse_queue(write_queue(spec)) == spec


def test_units_are_those_of_people() -> None:
    found = parse_queue(
        {"guarantee": 8, "limit": {"gpus": 16, "gpus:H100": 4.5, "cpus": 0.5, "memory": "1TiB", "licence": 3}}, "lab"
    )
    assert isinstance(found, QueueSpec)
    assert found.guarantee == (("gpu_milli", 8000),)
    assert dict(found.limit) == {
        "gpu_milli": 16_000, "gpu_milli:H100": 4500, "cpu_milli": 500, "memory_mib": 1 << 20, "licence": 3
    }  # fmt: skip


WRONG: dict[str, tuple[Any, dict[str, str]]] = {
    "no mapping": (5, {"": "wrong_type"}),
    "no name": ({}, {"name": "missing"}),
    "a bad name": ({"name": "a//b"}, {"name": "bad_text"}),
    "words of others": ({"name": "a", "nominalQuota": 8}, {"nominalQuota": "unknown_key"}),
    "a negative guarantee": ({"name": "a", "guarantee": -1}, {"guarantee": "wrong_type"}),
    "an engine's word": ({"name": "a", "limit": {"gpu_milli": 1}}, {"limit.gpu_milli": "bad_choice"}),
    "memory without unit": ({"name": "a", "limit": {"memory": 64}}, {"limit.memory": "wrong_type"}),
    "a budget without window": ({"name": "a", "budget": {"gpu_hours": 5}}, {"budget.window": "missing"}),
    "a change backwards": (
        {"name": "a", "changes": [{"from": "2026-02-01T00:00Z", "until": "2026-01-01T00:00Z"}]},
        {"changes[0]": "bad_range"},
    ),
}


@pytest.mark.parametrize(("document", "wanted"), WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_is_said_where_it_stands(document: Any, wanted: dict[str, str]) -> None:
    found = parse_queue(document)
    assert isinstance(found, list)
    assert {fault.field: fault.code for fault in found} == wanted


def test_a_name_is_not_said_twice_differently() -> None:
    assert isinstance(parse_queue({"name": "b"}, "a"), list)
    assert parse_queue({"name": "a"}, "a") == QueueSpec(name="a")


WORDS = [
    "guarantee",
    "limit",
    "budget",
    "changes",
    "gpus",
    "memory",
    "from",
    "until",
    "window",
    "gpu_hours",
    "name",
    "weight",
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=10,
)


@given(JSON)
def test_any_json_gives_a_queue_or_faults(document: Any) -> None:
    found = parse_queue(document, "lab")
    assert isinstance(found, QueueSpec) or found
