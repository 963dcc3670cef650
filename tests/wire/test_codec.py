"""Events come back as they were written, in every format, and what is no event is refused with a reason."""

from contextlib import suppress
from functools import cache
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corral.core import events as e
from corral.core.accounts import accounts as a
from corral.core.cluster.resources import Seat
from corral.core.fleets import fleets as fl
from corral.wire import codec

KINDS = get_args(e.Event) + get_args(a.AccountEvent) + get_args(fl.FleetEvent)
_numbers = st.integers(-(1 << 63), (1 << 63) - 1)


@cache
def _values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of a type that events are made of."""
    return _values(msgspec.inspect.type_info(kind))


def _values(about: msgspec.inspect.Type) -> st.SearchStrategy[Any]:
    known: dict[type, st.SearchStrategy[Any]] = {
        msgspec.inspect.IntType: _numbers,
        msgspec.inspect.StrType: st.text(max_size=12),
        msgspec.inspect.BoolType: st.booleans(),
        msgspec.inspect.NoneType: st.none(),
    }
    match about:
        case msgspec.inspect.EnumType(cls=cls):
            return st.sampled_from(list(cls))
        case msgspec.inspect.UnionType(types=types):
            return st.one_of([_values(each) for each in types])
        case msgspec.inspect.VarTupleType(item_type=item):
            return st.lists(_values(item), max_size=3).map(tuple)
        case msgspec.inspect.TupleType(item_types=items):
            return st.tuples(*[_values(each) for each in items])
        case msgspec.inspect.DictType(key_type=key, value_type=value):
            return st.dictionaries(_values(key), _values(value), max_size=3)
        case msgspec.inspect.AnyType():
            return st.one_of(_numbers, st.text(max_size=12), st.lists(st.booleans(), max_size=2))
        case msgspec.inspect.StructType(cls=cls, fields=fields):
            return st.fixed_dictionaries({each.name: _values(each.type) for each in fields}).map(lambda d: cls(**d))
        case _:
            return known[type(about)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=20, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_event_comes_back(kind, data):
    event = data.draw(_values_of(kind))
    body = codec.encode(event)
    again = codec.decode(codec.FORMAT, body)
    assert type(again) is type(event)
    assert again == event
    assert codec.encode(again) == body
    assert codec.kind_of(body) == kind.__name__


def test_names_are_unique():
    assert len({kind.__name__ for kind in KINDS}) == len(KINDS)


BAD = {
    "another format": (99, b'{"type":"JobHeld","at_ms":1,"job":"1"}', "format 99 is unknown.*newer version"),
    "format 0": (0, b"{}", "format 0 is unknown"),
    "another event": (codec.FORMAT, b'{"type":"JobDreamt","at_ms":1}', "says it is JobDreamt"),
    "a missing field": (codec.FORMAT, b'{"type":"JobHeld","at_ms":1}', "JobHeld.*missing required field `job`"),
    "no event": (codec.FORMAT, b"hello", "begin with b'hello'"),
    "nothing": (codec.FORMAT, b"", "begin with b''"),
    "bytes that are no text": (codec.FORMAT, b'{"type":"JobHeld","at_ms":1,"job":"\xff"}', "JobHeld"),
}


@pytest.mark.parametrize(("format", "body", "why"), BAD.values(), ids=BAD.keys())
def test_what_is_no_event_is_refused(format, body, why):
    with pytest.raises(codec.Unreadable, match=why):
        codec.decode(format, body)


@given(st.binary(max_size=60))
def test_no_bytes_lead_to_another_error(body):
    with suppress(codec.Unreadable):
        codec.decode(codec.FORMAT, body)


# ---- older formats, made up ----------------------------------------------------------------------------------------


def _to_2(raw: dict[str, Any]) -> dict[str, Any]:
    """In format 1 a job was called a task."""
    if raw["type"] == "TaskHeld":
        return {"type": "JobHeld", "at_ms": raw["at_ms"], "job": raw["task"]}
    return raw


def _to_3(raw: dict[str, Any]) -> dict[str, Any]:
    """In format 2 times were in seconds, and a seat was a list."""
    raw = {**raw, "at_ms": raw["at_ms"] * 1000}
    if raw["type"] == "GangPlaced":
        raw["seats"] = [{"node": node, "gpus": gpus} for node, gpus in raw["seats"]]
    return raw


UPCASTERS = {1: _to_2, 2: _to_3}
OLD = {
    "through two formats": (1, {"type": "TaskHeld", "at_ms": 5, "task": "7"}, e.JobHeld(5000, "7")),
    "through one": (
        2,
        {"type": "GangPlaced", "at_ms": 5, "gang": "7/main", "attempt": 1, "seats": [["a1", 3]]},
        e.GangPlaced(5000, "7/main", 1, (Seat("a1", 3),)),
    ),
    "not old": (3, {"type": "JobHeld", "at_ms": 5, "job": "7"}, e.JobHeld(5, "7")),
}


@pytest.mark.parametrize(("format", "raw", "event"), OLD.values(), ids=OLD.keys())
def test_older_formats_are_raised_step_by_step(format, raw, event):
    assert codec.decode_old(format, msgspec.json.encode(raw), 3, UPCASTERS) == event


def test_there_is_a_way_up_from_every_older_format():
    assert sorted(codec.UPCASTERS) == list(range(1, codec.FORMAT))
