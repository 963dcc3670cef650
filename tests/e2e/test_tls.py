"""A server, its command line and its agents over TLS, with an authority that only they know."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from corral.client import AsyncClient, Client
from corral.client.errors import Unreachable
from tests.accounts import OWN, VARIABLE
from tests.e2e.live import environment, free_port

pytestmark = pytest.mark.timeout(180)


def openssl(*words: str) -> None:
    done = subprocess.run(["openssl", *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def make_authority(folder: Path, name: str) -> Path:
    """``name.pem`` with its key beside it."""
    words = (
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
        "-subj",
        f"/CN={name}",
    )
    openssl("req", "-x509", *words, "-keyout", str(folder / f"{name}.key"), "-out", str(folder / f"{name}.pem"))
    return folder / f"{name}.pem"


def make_certificate(folder: Path, authority: Path, name: str) -> tuple[Path, Path]:
    """For this machine as it calls itself; signed by the authority."""
    key, asked, signed = (folder / f"{name}.{end}" for end in ("key", "csr", "pem"))
    words = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=corral")
    openssl("req", "-new", *words, "-keyout", str(key), "-out", str(asked))
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    openssl("x509", "-req", "-in", str(asked), "-CA", str(authority), "-CAkey", str(authority.with_suffix(".key")),
            "-CAcreateserial", "-days", "2", "-extfile", str(folder / "names"), "-out", str(signed))  # fmt: skip
    return signed, key


class House:
    """A folder with an authority and a stranger to it, and commands as typed there."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.ca, self.stranger = make_authority(folder, "authority"), make_authority(folder, "stranger")
        self.certificate, self.key = make_certificate(folder, self.ca, "server")
        kept = {name: value for name, value in environment().items() if not name.startswith(("CORRAL_", "SSL_"))}
        self.variables = kept | {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder / "config"), VARIABLE: OWN}
        self.processes: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def start(self, *words: str) -> None:
        with (self.folder / f"{words[0]}.log").open("ab") as log:
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "corral", *words],
                    env=self.variables, stdout=log, stderr=log, start_new_session=True,
                )
            )  # fmt: skip

    def type(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "corral", *words],
            env=self.variables | variables, capture_output=True, text=True, timeout=60,
        )  # fmt: skip

    def credentials(self) -> Any:
        return json.loads((self.folder / "config" / "corral" / "credentials.json").read_bytes())

    def end(self) -> None:
        for process in reversed(self.processes):
            process.terminate()
            process.wait(60)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    yield house
    house.end()


def until(what: Callable[[], Any], within_s: float = 60) -> Any:
    end = time.monotonic() + within_s
    while not (found := what()):
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.1)
    return found


def up(house: House) -> None:
    words = ("--listen", f"127.0.0.1:{house.port}", "--data", str(house.folder / "data"), "--cluster")
    house.start(
        "up", *words, "--tls-cert", str(house.certificate), "--tls-key", str(house.key), "--tls-ca", str(house.ca)
    )
    until((house.folder / "data" / "server.json").exists)


def test_all_users_speaks_tls_and_knows_the_server_by_a_private_authority(house: House):
    up(house)
    kept = house.credentials()
    assert (kept["url"], kept["ca"]) == (house.url, str(house.ca))
    assert house.type("whoami").returncode == 0, "the first start has kept the authority with the token"

    stranger = house.type("whoami", CORRAL_CA=str(house.stranger))
    assert stranger.returncode != 0
    assert "is not trusted" in stranger.stderr
    assert "CORRAL_CA" in stranger.stderr
    with (
        pytest.raises(Unreachable, match="not trusted"),
        Client(house.url, kept["token"], patience_s=0, ca="") as unknown,
    ):
        unknown.whoami()
    missing = house.type("whoami", CORRAL_CA=str(house.folder / "nowhere.pem"))
    assert "nowhere.pem cannot be read" in missing.stderr

    token = house.type("node", "token").stdout.strip()
    join = (
        "node",
        "join",
        "--server",
        house.url,
        "--token",
        token,
        "--name",
        "n1",
        "--data",
        str(house.folder / "agent"),
    )
    refused = house.type(*join, "--ca", str(house.stranger))
    assert refused.returncode != 0
    assert "CERTIFICATE_VERIFY_FAILED" in refused.stderr
    joined = house.type(*join, "--ca", os.path.relpath(house.ca))
    assert joined.returncode == 0, joined.stderr
    house.start("agent", "--data", str(house.folder / "agent"), "--fake-gpus", "2xL4")
    with Client(house.url, kept["token"], ca=str(house.ca)) as client:
        until(lambda: client.nodes().nodes)
        job = client.submit({"command": ["echo", "over TLS"], "gpus": 1, "processes": 1}).id
        assert client.wait(job, timeout_s=60).state == "succeeded"
        assert b"".join(part.data for part in client.logs(job)) == b"over TLS\n"


async def test_an_asynchronous_client_and_a_login_know_the_authority_too(house: House):
    up(house)
    kept = house.credentials()
    async with AsyncClient(house.url, kept["token"], ca=str(house.ca)) as client:
        assert (await client.whoami()).user == "admin"
    (house.folder / "config" / "corral" / "credentials.json").unlink()
    assert "no credentials" in house.type("whoami").stderr
    wrong = house.type("login", "--server", house.url, "--token", kept["token"])
    assert (wrong.returncode != 0, "is not trusted" in wrong.stderr) == (True, True)
    done = house.type("login", "--server", house.url, "--token", kept["token"], "--ca", os.path.relpath(house.ca))
    assert done.returncode == 0, done.stderr
    assert house.credentials() == kept
    assert house.type("whoami").returncode == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--listen", "0.0.0.0:0"), "tokens would be sent unencrypted"),
        (("--listen", "127.0.0.1:0", "--tls-cert", "server.pem"), "a certificate and its key belong together"),
        (("--listen", "127.0.0.1:0", "--tls-cert", "server.pem", "--tls-key", "stranger.key"), "do not match"),
        (("--listen", "127.0.0.1:0", "--tls-cert", "server.pem", "--tls-key", "nowhere"), "cannot read the TLS files"),
        (("--listen", "127.0.0.1:0", "--tls-cert", "names", "--tls-key", "server.key"), "are not PEM"),
    ],
)
def test_a_server_does_not_start_with_half_of_it(house: House, words: tuple[str, ...], said: str):
    words = tuple(str(house.folder / word) if (house.folder / word).exists() else word for word in words)
    done = house.type("up", "--data", str(house.folder / "data"), *words)
    assert done.returncode != 0
    assert said in done.stderr
    assert not (house.folder / "data" / "server.json").exists()
