"""Sign-in on the page of the dashboard: to an identity provider and back, in a real browser."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from tests.e2e.live import free_port

ANN = {"sub": "s-1", "preferred_username": "ann", "groups": ["vision"]}
BOB = {"sub": "s-2", "preferred_username": "bob", "groups": ["nothing"]}
CONFIG = """
queues: {{lab: {{}}, default: {{}}}}
accounts: {{default: daemon}}
sign_in:
  providers:
    company:
      issuer: {issuer}
      client_id: corral
      client_secret_file: {secret}
      roles:
        - {{group: vision, role: member, queue: lab}}
"""


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    """A provider with its own pages, as a process: its library warns when it is imported."""
    port = free_port()
    words = [word for user in (ANN, BOB) for word in ("--user-claims", json.dumps(user))]
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "oidc_provider_mock", "--port", str(port), "--require-nonce", "true",
         *words],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(300):
            try:
                urllib.request.urlopen(f"{url}/.well-known/openid-configuration", timeout=5).close()
                break
            except OSError:
                time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture(scope="module")
def dashboard(browser: Browser, issuer: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("sign-in")
    secret = folder / "secret"
    secret.touch(0o600)
    secret.write_text("a secret of the test")
    (folder / "corral.yaml").write_text(CONFIG.format(issuer=issuer, secret=secret))
    port = free_port()
    environment = {"HOME": str(folder), "PATH": os.environ["PATH"]}
    corral = [sys.executable, "-m", "corral"]
    data = ["--data", str(folder / "data")]
    up = [*corral, "up", "--detach", "--fake-gpus", "8xH100", "--config", str(folder / "corral.yaml"),
          "--listen", f"127.0.0.1:{port}", "--agent-port", "0", *data]  # fmt: skip
    subprocess.run(up, env=environment, check=True, timeout=90, stdout=subprocess.DEVNULL)
    yield f"http://127.0.0.1:{port}"
    subprocess.run([*corral, "down", *data], env=environment, check=True, timeout=90, stdout=subprocess.DEVNULL)


@pytest.fixture
def page(browser: Browser, dashboard: str) -> Iterator[Page]:
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(30_000)
    page.goto(dashboard + "/")
    page.click("text=Sign in with company")
    page.wait_for_selector("text=Authorize Client")
    yield page
    context.close()


def test_a_person_signs_in_at_the_provider_works_and_signs_out(page, dashboard, issuer):
    assert page.url.startswith(issuer)
    assert "code_challenge_method=S256" in page.url
    page.click(f"button[value={ANN['sub']}]")
    page.wait_for_selector(".shell")
    assert page.url.startswith(dashboard + "/")
    assert "code=" not in page.url
    who = page.evaluate("fetch('v1/whoami').then(answer => answer.json())")
    assert who["user"] == "ann"
    assert page.evaluate("document.cookie") == ""  # scripts cannot read the session
    names = {cookie["name"].rpartition("_")[0]: cookie for cookie in page.context.cookies(dashboard)}
    assert set(names) == {"corral_session"}
    assert names["corral_session"]["httpOnly"]
    assert names["corral_session"]["sameSite"] == "Strict"
    page.reload()
    page.wait_for_selector(".shell")
    proof = page.evaluate("fetch('v1/session').then(answer => answer.json())")["csrf"]
    page.evaluate("proof => fetch('v1/session', {method: 'DELETE', headers: {'Corral-CSRF': proof}})", proof)
    page.reload()
    page.wait_for_selector("text=Sign in with company")


def test_who_has_no_role_is_told_so_on_the_page(page):
    page.click(f"button[value={BOB['sub']}]")
    page.wait_for_selector("text=no rule of this site gives a role to bob")


def test_who_refuses_at_the_provider_is_back_on_the_page(page):
    page.click("button[value=deny]")
    page.wait_for_selector("text=the sign-in was refused at the provider")


def test_a_link_of_another_person_does_not_sign_in(page, browser, dashboard):
    """The address that ends a sign-in is of no use in another browser: it would sign its reader in as its sender."""
    answer = page.context.request.post(page.url, form={"sub": ANN["sub"]}, max_redirects=0)
    link = answer.headers["location"]
    assert link.startswith(f"{dashboard}/?code=")
    other = browser.new_context()
    reader = other.new_page()
    reader.goto(link)
    reader.wait_for_selector("text=was begun in another browser")
    assert reader.evaluate("fetch('v1/whoami').then(answer => answer.status)") == 401
    other.close()
