"""The configuration: what it says, what holds when it says nothing, and faults with their places."""

from __future__ import annotations

import subprocess
import sys

import pytest

from corral.core.model import QueueSpec
from corral.wire.config import Config, parse_config, read_config, write_config
from corral.wire.job.failure_rules import FailureRule
from tests.architecture.repository import ROOT

EXAMPLES = sorted((ROOT / "examples" / "config").glob("*.yaml"))


def said(text: str) -> list[str]:
    found = read_config(text, "corral.yaml")
    assert isinstance(found, list), found
    return [str(each) for each in found]


def config(text: str) -> Config:
    found = read_config(text, "corral.yaml")
    assert isinstance(found, Config), found
    return found


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "{}"])
def test_nothing_said_is_the_defaults(text: str) -> None:
    assert config(text) == Config()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_what_is_written_is_read_back(path) -> None:
    found = config(path.read_text())
    assert parse_config(write_config(found)) == found


def test_the_defaults_are_read_back() -> None:
    assert parse_config(write_config(Config())) == Config()


def test_rules_for_failures_are_read_back() -> None:
    found = config(
        'failures: [{says: "link is down", class: network, why: the fabric}, {exit_code: 99, class: killed}]'
    )
    assert found.failures == (
        FailureRule(failure="network", says="link is down", why="the fabric"),
        FailureRule(failure="killed", exit_code=99),
    )
    assert parse_config(write_config(found)) == found


@pytest.mark.parametrize(
    ("rule", "code"),
    [
        ("{class: network}", "missing"),
        ("{exit_code: 3}", "missing"),
        ("{says: x, class: node_lost}", "bad_choice"),
        ("{says: x, class: network, exit_code: 0}", "out_of_range"),
        ("just words", "wrong_type"),
    ],
)
def test_a_rule_for_failures_that_cannot_be_meant_is_refused(rule: str, code: str) -> None:
    found = read_config(f"failures: [{rule}]", "corral.yaml")
    assert isinstance(found, list)
    assert [each.fault.code for each in found] == [code]


def test_keys_say_what_they_say() -> None:
    (path,) = EXAMPLES
    found = config(path.read_text())
    assert found.policy.patience_ms == 12 * 3_600_000
    assert found.settings.levels == ("rack",)
    assert found.logs.task_mib == 256
    assert found.limits.array_size == 50_000
    assert [queue.name for queue in found.queues] == ["lab", "lab/vision", "lab/language"]
    assert found.queues[2].budget is not None
    assert found.queues[2].budget.gpu_ms == 5000 * 3_600_000


def test_a_default_queue_is_made_when_no_queues_are_named() -> None:
    assert config("default_queue: lab\n").queues == (QueueSpec(name="lab"),)


WRONG = {
    "an unknown key": ("polcy: fifo\n", "corral.yaml:1:1: polcy: there is no key 'polcy' here. did you mean policy?"),
    "an unknown policy": ("policy: standrad\n", "corral.yaml:1:9: policy: there is no policy 'standrad'. did"),
    "a port at the top": ("port: 80\n", "corral.yaml:1:1: port: there is no key 'port' here. it belongs below listen"),
    "plain http elsewhere": ("listen:\n  address: 0.0.0.0\n", "corral.yaml:2:12: listen.address: 0.0.0.0 is reachable"),
    "half of tls": ("listen: {tls_key: /k}\n", "corral.yaml:1:9: listen.tls_certificate: tls_certificate is missing"),
    "no default queue": ("queues:\n  lab: {}\n", "corral.yaml:2:3: queues: the default queue is default, but"),
    "a bad queue": ("queues:\n  lab:\n    weigt: 1\n", "corral.yaml:3:5: queues.lab.weigt: there is no key 'weigt'"),
    "a span without unit": ("fairness: {half_life: 7}\n", "corral.yaml:1:23: fairness.half_life: '7' has no unit"),
    "no yaml": ("a: [\n", "corral.yaml:2:1: "),
    "two documents": ("{}\n---\n{}\n", "corral.yaml:1:1: more than 1 documents in one file"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "begins"), WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_is_said_where_it_stands(text: str, begins: str) -> None:
    assert said(text)[0].startswith(begins)


def test_everything_is_reported_at_once() -> None:
    text = "polcy: fifo\nlogs: {keep: 7}\nqueues:\n  lab:\n    guarantee: x\n    queues: {'a b': {}}\n"
    assert [line.split(": ")[0] for line in said(text)] == [
        "corral.yaml:1:1", "corral.yaml:2:14", "corral.yaml:5:16", "corral.yaml:6:21"
    ]  # fmt: skip


def test_it_is_light() -> None:
    program = "import sys, corral.wire.config; print([m for m in ('ruamel.yaml', 'corral.policy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
