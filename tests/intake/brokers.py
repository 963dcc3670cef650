"""Message brokers of the tests' own, on loopback: RabbitMQ with its own epmd, and Redis. Each in a folder of its own.

Knows the programs, their options and how they end. Without them, the error says what is missing.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from tests.database import ending_with_us
from tests.e2e.live import free_port

READY_S = 120.0
_SERVER = "/usr/lib/rabbitmq/bin/rabbitmq-server"
_CONFIGURATION = """\
listeners.tcp.1 = 127.0.0.1:{port}
loopback_users = none
default_user = corral
default_pass = {password}
log.file.level = warning
log.console = false
vm_memory_high_watermark.absolute = 1GB
disk_free_limit.absolute = 50MB
"""


class NoBroker(Exception):
    """There is no such broker on this machine. Says what installs it."""


def answers(port: int, greeting: bytes = b"", wanted: bytes = b"") -> bool:
    """Whether something accepts connections and, if it is greeted, answers."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as there:
        if not greeting:
            return True
        there.settimeout(5)
        there.sendall(greeting)
        return wanted in there.recv(64)
    return False


class PrivateRabbit:
    """One node of RabbitMQ. What it has stored outlives ``kill`` and ``start``."""

    kind = "rabbitmq"

    def __init__(self) -> None:
        if not Path(_SERVER).exists() or shutil.which("epmd") is None:
            raise NoBroker("RabbitMQ is not installed; as root, tools/services.sh rabbitmq installs it")
        self.folder = Path(tempfile.mkdtemp(prefix="corral-mq-"))
        self.port, self._dist_port, self._epmd_port = free_port(), free_port(), free_port()
        self.password = os.urandom(12).hex()
        (self.folder / "rabbitmq.conf").write_text(_CONFIGURATION.format(port=self.port, password=self.password))
        (self.folder / "plugins").write_text("[].\n")
        (self.folder / "environment").write_text("")
        self._epmd = subprocess.Popen(
            [*ending_with_us(), "epmd", "-port", str(self._epmd_port), "-address", "127.0.0.1"],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"amqp://corral:{self.password}@127.0.0.1:{self.port}/"

    @property
    def plain_url(self) -> str:
        """The address without the password."""
        return f"amqp://corral@127.0.0.1:{self.port}/"

    def _environment(self) -> dict[str, str]:
        place = str(self.folder)
        return os.environ | {
            "HOME": place,
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"corral{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(self._dist_port),
            "RABBITMQ_MNESIA_BASE": f"{place}/mnesia",
            "RABBITMQ_LOG_BASE": f"{place}/log",
            "RABBITMQ_CONFIG_FILE": f"{place}/rabbitmq.conf",
            "RABBITMQ_CONF_ENV_FILE": f"{place}/environment",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{place}/plugins",
            "RABBITMQ_PID_FILE": f"{place}/pid",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none",
        }

    def start(self) -> None:
        """Start the node; returns when it accepts connections."""
        with (self.folder / "output").open("ab") as output:
            self.process = subprocess.Popen(
                [*ending_with_us(), _SERVER],
                env=self._environment(),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        end = time.monotonic() + READY_S
        while not answers(self.port, b"AMQP\x00\x00\x09\x01", b"\x01\x00\x00"):
            if self.process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"RabbitMQ did not start:\n{(self.folder / 'output').read_text()[-2000:]}")
            time.sleep(0.1)

    def kill(self) -> None:
        """SIGKILL to all of its processes."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(30)
            self.process = None

    def close(self) -> None:
        self.kill()
        self._epmd.kill()
        self._epmd.wait(30)
        shutil.rmtree(self.folder, ignore_errors=True)


class PrivateRedis:
    """One Redis. ``durable``: it writes everything to its disk at once, as an operator of an intake sets it."""

    kind = "redis"

    def __init__(self, *, durable: bool = True) -> None:
        if shutil.which("redis-server") is None:
            raise NoBroker("Redis is not installed; as root, tools/services.sh redis installs it")
        self.folder = Path(tempfile.mkdtemp(prefix="corral-redis-"))
        self.port, self.password = free_port(), os.urandom(12).hex()
        settings = {
            "port": self.port, "bind": "127.0.0.1", "dir": self.folder, "requirepass": self.password,
            "appendonly": "yes", "appendfsync": "always" if durable else "everysec", "save": '""', "daemonize": "no",
        }  # fmt: skip
        text = "".join(f"{name} {value}\n" for name, value in settings.items())
        (self.folder / "redis.conf").write_text(text)
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    @property
    def plain_url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        with (self.folder / "output").open("ab") as output:
            self.process = subprocess.Popen(
                [*ending_with_us(), "redis-server", str(self.folder / "redis.conf")],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        end = time.monotonic() + READY_S
        while not answers(self.port, b"PING\r\n", b"-NOAUTH"):
            if self.process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"Redis did not start:\n{(self.folder / 'output').read_text()[-2000:]}")
            time.sleep(0.05)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(30)
            self.process = None

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


PrivateBroker = PrivateRabbit | PrivateRedis
