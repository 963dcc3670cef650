"""From what is typed to a document, and back from a fault to the option."""

from __future__ import annotations

from typing import Any

import pytest

from corral.core.model import JobSpec
from corral.wire.job import parse_job
from corral.wire.job.shorthand import document_of, job_options, option_of

TYPED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "numbers": ({"gpus": "2", "cpus": "1.5", "priority": "-3"}, {"gpus": 2, "cpus": 1.5, "priority": -3}),
    "texts that look like numbers": ({"name": "17", "array": "5"}, {"name": "17", "array": "5"}),
    "units stay": ({"time_limit": "1h", "memory": "64GiB"}, {"time_limit": "1h", "memory": "64GiB"}),
    "pairs": ({"env": ("A=1", "B=x=y"), "label": ("k=v",)}, {"env": {"A": "1", "B": "x=y"}, "labels": {"k": "v"}}),
    "lists": ({"after": ("12,any:13", "14")}, {"after": ["12", "any:13", "14"]}),
    "flags": ({"hold": True, "checkpoints": False, "no_preempt": True}, {"hold": True, "preemptible": False}),
    "what was not typed": ({"gpus": None, "env": (), "name": ""}, {}),
    "gpus in full": (
        {"gpu_model": ("H100", "H200"), "gpu_vram": "40GB.."}, {"gpu": {"model": ["H100", "H200"], "vram": "40GB.."}}
    ),
    "levels": (
        {"prefer": "rack@10m", "spread": "rack:2", "within": "zone"},
        {"prefer": {"level": "rack", "wait": "10m"}, "spread": {"level": "rack", "max": 2}, "within": "zone"},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("options", "document"), TYPED.values(), ids=TYPED.keys())
def test_options_become_a_document(options: dict[str, Any], document: dict[str, Any]) -> None:
    assert document_of(options) == document
    assert isinstance(parse_job(document_of(options, ["true"])), JobSpec)


def test_commands() -> None:
    assert document_of({}, ["python", "a b.py"])["command"] == ["python", "a b.py"]
    assert document_of({}, ["a | b"])["command"] == "a | b"
    assert document_of({}, ["./run.sh"])["command"] == ["./run.sh"]


def test_every_option_is_typed_in_its_own_way() -> None:
    names = [name for option in job_options() for name in option.names]
    assert len(names) == len(set(names))
    assert all(option.help for option in job_options())


def test_a_fault_leads_to_its_option() -> None:
    document = document_of({"time_limit": "5", "env": ("1=x",), "gpu_vram": "40G", "gpus": "x!"}, [])
    found = parse_job(document)
    assert isinstance(found, list)
    assert [option_of(fault.path) for fault in found] == [
        "--gpus",
        "--env",
        "--time-limit",
        "--gpu-vram",
        "the command",
    ]
