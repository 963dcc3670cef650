"""A Slurm of the tests' own that keeps accounts: a MariaDB on a Unix socket and slurmdbd on loopback beside the rest.

Needs Debian's slurmdbd and mariadb-server-core too (tools/services.sh). Nothing is asked of the machine's own database.
"""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
from pathlib import Path

from tests.providers import private_slurm
from tests.providers.private_slurm import NEEDED, PATIENCE_S, PrivateSlurm, free_ports

_ALSO = ("slurmdbd", "sacct", "sacctmgr", "mariadbd", "mariadb-install-db")
_ACCOUNT = "nobody"  # a database does not run as root


def why_not() -> str:
    """Why there can be no such Slurm here; empty: there can."""
    return private_slurm.why_not() or private_slurm.why_not((*NEEDED, *_ALSO), "slurmdbd")


class AccountedSlurm(PrivateSlurm):
    """``job_age_s``: this long after its end the controller forgets a job, at the earliest."""

    def __init__(self, nodes: int = 2, job_age_s: int = 1) -> None:
        super().__init__(nodes, gpus=4, kill_wait_s=5, settings={"MinJobAge": str(job_age_s)})
        *self._ports, self._dbd_port = free_ports(nodes + 2)
        self._settings |= {
            "AccountingStorageType": "accounting_storage/slurmdbd", "AccountingStorageHost": "127.0.0.1",
            "AccountingStoragePort": str(self._dbd_port),
            "AccountingStoragePass": f"{self.folder}/munge/socket",  # that of munge, by an odd name
        }  # fmt: skip

    @property
    def env(self) -> dict[str, str]:
        return {**super().env, "MYSQL_UNIX_PORT": str(self._database / "socket")}  # where slurmdbd finds "localhost"

    def start_accounting(self) -> None:
        self._begin("slurmdbd", ["slurmdbd", "-D"])
        self._until(lambda: "corraltest" in self.command("sacctmgr", "-nPi", "show", "cluster", "format=cluster"))

    def signal_accounting(self, number: signal.Signals) -> None:
        self._processes["slurmdbd"].send_signal(number)

    def kill_accounting(self) -> None:
        process = self._processes.pop("slurmdbd")
        process.kill()
        process.wait(PATIENCE_S)

    # --- within -------------------------------------------------------------------------------------------------------

    @property
    def _database(self) -> Path:
        return self.folder / "database"

    def _start_services(self) -> None:
        super()._start_services()
        self._start_database()
        conf = self.folder / "slurmdbd.conf"
        lines = f"""
            AuthType=auth/munge
            AuthInfo=socket={self.folder}/munge/socket
            DbdHost=localhost
            DbdAddr=127.0.0.1
            DbdPort={self._dbd_port}
            SlurmUser=root
            PidFile={self.folder}/run/slurmdbd.pid
            LogFile={self.folder}/log/slurmdbd.log
            StorageType=accounting_storage/mysql
            StorageHost=localhost
            StorageUser=root
            StorageLoc=accounts
        """
        conf.write_text("".join(f"{line.strip()}\n" for line in lines.strip().splitlines()))
        conf.chmod(0o600)
        self._begin("slurmdbd", ["slurmdbd", "-D"])
        self._until(lambda: "corraltest" in self.command("sacctmgr", "-i", "add", "cluster", "corraltest"))

    def _start_database(self) -> None:
        """A process that reaches the socket may do everything, so only the two that need it reach it."""
        self._database.mkdir(mode=0o700)
        os.chown(self._database, pwd.getpwnam(_ACCOUNT).pw_uid, -1)
        common = ["--no-defaults", f"--user={_ACCOUNT}", f"--datadir={self._database}/data"]
        made = subprocess.run(
            ["mariadb-install-db", *common, "--skip-test-db", "--auth-root-authentication-method=normal"],
            env={**os.environ, **self.env}, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert made.returncode == 0, f"{made.stdout}{made.stderr}"
        socket = self._database / "socket"
        words = ["mariadbd", *common, f"--socket={socket}", "--skip-networking", "--skip-grant-tables"]
        words += ["--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=64M", f"--tmpdir={self._database}"]
        self._begin("mariadbd", words)
        self._until(socket.exists)
