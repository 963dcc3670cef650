"""What is typed about a provider becomes its settings, or a complaint that says where and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from corral.cli.errors import Complaint
from corral.cli.fleet.providers import ray, ssh

GOOD = """\
user: root
ca: ca.pem
hosts:
  - gpu1
  - host: gpu2
    port: 2222
"""
BAD = {
    "nothing": ("", "is empty"),
    "no YAML": ("hosts: [", "hosts.yaml:1:"),
    "a port that is a word": ("hosts:\n  - host: gpu1\n    port: ssh\n", "hosts.yaml:3:11: Expected `int`"),
    "an unknown key, in a plain list": ("- gpu1\n- host: gpu2\n  prt: 3\n", "hosts.yaml:2:3: .*unknown field `prt`"),
    "a host that is an option": ("- -oProxyCommand=x\n", "is not a host name or address"),
    "an authority that is not there": ("ca: none.pem\nhosts: [gpu1]\n", "none.pem cannot be read"),
    "no hosts": ("user: root\n", "missing required field `hosts`"),
}


def test_a_file_of_hosts_becomes_settings(tmp_path: Path) -> None:
    file = tmp_path / "hosts.yaml"
    file.write_text(GOOD)
    (tmp_path / "ca.pem").write_text("CERTIFICATE")
    assert ssh.settings({"hosts": str(file), "grace": 5_000, "fake_gpus": "8xH100", "accept_new": True}) == {
        "user": "root",
        "ca": "CERTIFICATE",
        "hosts": [{"fake_gpus": "8xH100", "host": "gpu1"}, {"fake_gpus": "8xH100", "host": "gpu2", "port": 2222}],
        "grace_ms": 5_000,
        "accept_new": True,
    }


@pytest.mark.parametrize(("text", "words"), BAD.values(), ids=BAD.keys())
def test_what_is_wrong_with_a_file_of_hosts_is_reported_with_its_place(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "hosts.yaml"
    file.write_text(text)
    with pytest.raises(Complaint, match=words):
        ssh.settings({"hosts": str(file)})


def test_hosts_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(Complaint, match="a list of hosts"):
        ssh.settings({})
    with pytest.raises(Complaint, match="cannot be read"):
        ssh.settings({"hosts": str(tmp_path / "none.yaml")})


def test_what_is_said_of_ray_becomes_settings() -> None:
    given = {"address": "head:6379", "ray_token": "/etc/ray/token", "labels": ("pool=a",), "with_head": True}
    assert ray.settings(given | {"path_labels": ("rack",), "ray_python": "/opt/ray/bin/python"}) == {
        "address": "head:6379",
        "token_file": "/etc/ray/token",
        "labels": {"pool": "a"},
        "has_head": True,
        "path": ["rack"],
        "python": "/opt/ray/bin/python",
    }
    with pytest.raises(Complaint, match="address of the head node"):
        ray.settings({})
    with pytest.raises(Complaint, match="--label cannot be 'pool'"):
        ray.settings({"address": "head:6379", "labels": ("pool",)})
