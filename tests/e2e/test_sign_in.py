"""Sign-in as people and CI jobs do it: by the command line, on a real server, with real tokens of a provider."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.e2e.live import free_port
from tests.identity_provider import IdentityProvider

ANN = {"sub": "s-1", "preferred_username": "ann", "groups": ["vision"]}
CONFIG = """
queues: {{lab: {{}}, default: {{}}}}
accounts: {{default: daemon}}
sign_in:
  providers:
    company:
      issuer: {url}
      client_id: corral
      scopes: [openid, offline_access]
      token_lifetime: {lifetime}
      roles:
        - {{group: vision, role: member, queue: lab}}
  issuers:
    forge:
      issuer: {url}
      audience: corral-ci
      rules:
        - {{claims: {{repository: lab/models}}, user: ci, role: member, queue: lab, scope: [jobs.submit, jobs.read]}}
"""


@pytest.fixture
def provider():
    with IdentityProvider() as provider:
        yield provider


class Person:
    """A user with a home folder of their own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        home.mkdir(exist_ok=True)
        self.environment = {"HOME": str(home), "PATH": os.environ["PATH"]}
        self.port = 0
        self.up: tuple[str, ...] = ()

    def start(self, *words: str, **more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "corral", *words], env=self.environment | more, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, cwd=self.home,
        )  # fmt: skip

    def run(self, *words: str, code: int = 0, **more: str) -> str:
        process = self.start(*words, **more)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == code, output
        return output


@pytest.fixture
def site(tmp_path, provider):
    """A server whose administrator is ``root``, started by ``corral up``."""
    config = tmp_path / "corral.yaml"
    config.write_text(CONFIG.format(url=provider.url, lifetime="62s"))
    root = Person(tmp_path / "root")
    root.port = free_port()
    root.up = ("up", "--detach", "--fake-gpus", "8xH100", "--config", str(config), "--listen", f"127.0.0.1:{root.port}",
               "--agent-port", "0", "--data", str(tmp_path / "data"))  # fmt: skip
    root.run(*root.up)
    yield root
    root.run("down", "--data", str(tmp_path / "data"))


def test_people_and_ci_jobs_sign_in_work_and_sign_out(site, tmp_path, provider):
    url = f"http://127.0.0.1:{site.port}"
    ann = Person(tmp_path / "ann")
    login = ann.start("login", "--server", url)
    assert login.stdout is not None
    assert f"{provider.url}/activate" in login.stdout.readline()
    assert "WDJB-MJHT" in login.stdout.readline()
    provider.claims = ANN
    assert "as ann" in login.communicate(timeout=60)[0]
    assert "member of lab" in ann.run("whoami")

    # the sign-in lasts 62 s: it is renewed in its last minute, by several commands at once, with one use of the token
    kept = ann.home / ".config/corral/credentials.json"
    before = json.loads(kept.read_text())
    time.sleep(max(before["expires_ms"] / 1000 - 59 - time.time(), 0))
    threads = [threading.Thread(target=ann.run, args=("whoami",)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    after = json.loads(kept.read_text())
    assert after["token"] != before["token"]
    used = [form for path, form in provider.requests if form.get("grant_type") == "refresh_token"]
    assert len(used) <= 2  # the renewed one may be in its last minute again

    assert "revoked" in ann.run("logout")
    assert not kept.exists()
    assert not provider.refresh_tokens

    robot = Person(tmp_path / "ci")
    token = provider.token({"sub": "run 7", "repository": "lab/models"}, aud="corral-ci")
    exchange = ("login", "--server", url, "--id-token-variable", "ID_TOKEN")
    robot.run(*exchange, ID_TOKEN=token)
    assert robot.run("submit", "--parsable", "--queue", "lab", "--", "true").strip().isdecimal()
    assert "used already" in robot.run(*exchange, code=4, ID_TOKEN=token)

    record = site.run("events", "--type", "SignedIn", "--limit", "50")
    assert "ann signed in with company" in record
    assert "ci signed in with forge" in record
    site.run("down", "--data", str(tmp_path / "data"))
    site.run(*site.up)  # what a sign-in changed is in the journal
    assert "used already" in robot.run(*exchange, code=4, ID_TOKEN=token)
