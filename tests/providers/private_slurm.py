"""A Slurm of the tests' own on one machine: munged, slurmctld and a few slurmd, on loopback, with made-up GPUs.

Needs root and Debian's slurm-wlm and munge (tools/services.sh). Ends with the process that started it, also if that is
killed. Jobs of any user of the machine can be run; nodes are called n0, n1, ... and stand below two switches.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol")
PATIENCE_S = 30.0
_PR_SET_PDEATHSIG = 1


def why_not(needed: Sequence[str] = NEEDED, service: str = "slurm") -> str:
    """Why there can be no Slurm here; empty: there can."""
    if os.geteuid() != 0:
        return "needs root"
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    absent = [name for name in needed if shutil.which(name, path=path) is None]
    return f"not installed: {', '.join(absent)} (tools/services.sh {service})" if absent else ""


class PrivateSlurm:
    """``settings``: of slurm.conf, beyond or instead of its own."""

    def __init__(
        self,
        nodes: int = 4,
        gpus: int = 4,
        cpus: int = 16,
        kill_wait_s: int = 15,
        settings: dict[str, str] | None = None,
    ) -> None:
        self.nodes, self.gpus, self.cpus, self.kill_wait_s = nodes, gpus, cpus, kill_wait_s
        self._settings = settings or {}
        self.folder = Path(tempfile.mkdtemp(prefix="corral-slurm-"))
        self.folder.chmod(0o755)  # any user may submit
        self.conf = self.folder / "slurm.conf"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._ports = free_ports(nodes + 1)

    # --- its life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        try:
            for name in ("munge", "state", "spool", "log", "run", "dev", "bin"):
                (self.folder / name).mkdir(exist_ok=True)
            self._configure()
            self._start_services()
            self.start_controller()
            for number in range(self.nodes):
                self._begin(f"slurmd-{number}", ["slurmd", "-D", "-f", str(self.conf), "-N", f"n{number}"])
            self._until(lambda: self.command("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == str(self.nodes))
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        for name in reversed(list(self._processes)):
            self._end(name)
        self._end_strays()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end_strays(self) -> None:
        """Of jobs that were still running: their keepers (slurmstepd) and all others that know this Slurm."""
        mark = f"SLURM_CONF={self.conf}\0".encode()
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and int(entry.name) != os.getpid():
                with suppress(OSError):
                    if mark in (entry / "environ").read_bytes():
                        os.kill(int(entry.name), signal.SIGKILL)

    def start_controller(self, *words: str) -> None:
        self._begin("slurmctld", ["slurmctld", "-D", "-f", str(self.conf), *words])
        self._until(lambda: "UP" in self.command("scontrol", "ping"))

    def stop_controller(self) -> None:
        """As an administrator would: it saves what it knows."""
        self._end("slurmctld")

    def kill_controller(self) -> None:
        """At once: what it acknowledged just before is forgotten."""
        process = self._processes.pop("slurmctld")
        process.kill()
        process.wait(PATIENCE_S)

    @property
    def env(self) -> dict[str, str]:
        """What commands need to find it. Commands in ``bin`` come before Slurm's own."""
        path = f"{self.folder / 'bin'}:{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
        return {"SLURM_CONF": str(self.conf), "PATH": path}

    def command(self, *words: str) -> str:
        done = subprocess.run(
            words, env={**os.environ, **self.env}, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        return done.stdout

    # --- within -------------------------------------------------------------------------------------------------------

    def _configure(self) -> None:
        host, last = socket.gethostname().partition(".")[0], self.nodes - 1
        folder, ports = self.folder, ",".join(map(str, self._ports[1:]))
        lines = f"""
            ClusterName=corraltest
            SlurmctldHost={host}(127.0.0.1)
            SlurmctldPort={self._ports[0]}
            SlurmUser=root
            SlurmdUser=root
            AuthType=auth/munge
            AuthInfo=socket={folder}/munge/socket
            CredType=cred/munge
            StateSaveLocation={folder}/state
            SlurmdSpoolDir={folder}/spool/%n
            SlurmctldPidFile={folder}/run/slurmctld.pid
            SlurmdPidFile={folder}/run/slurmd-%n.pid
            SlurmctldLogFile={folder}/log/slurmctld.log
            SlurmdLogFile={folder}/log/slurmd-%n.log
            ProctrackType=proctrack/linuxproc
            TaskPlugin=task/none
            JobAcctGatherType=jobacct_gather/none
            AccountingStorageType=accounting_storage/none
            MpiDefault=none
            ReturnToService=2
            SlurmdParameters=config_overrides
            SelectType=select/cons_tres
            SelectTypeParameters=CR_CPU_Memory
            GresTypes=gpu
            TopologyPlugin=topology/tree
            SchedulerType=sched/backfill
            SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,bf_interval=2,sched_interval=2
            PreemptType=preempt/partition_prio
            PreemptMode=CANCEL
            KillWait={self.kill_wait_s}
            MinJobAge=60
            SlurmdTimeout=20
            InactiveLimit=0
            MessageTimeout=10
            NodeName=DEFAULT CPUs={self.cpus} RealMemory=64000 Gres=gpu:h100:{self.gpus} State=UNKNOWN
            NodeName=n[0-{last}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{ports}]
            PartitionName=DEFAULT Nodes=ALL MaxTime=1-0 DefaultTime=60 DefMemPerCPU=100 State=UP
            PartitionName=gpu Default=YES PriorityTier=1
            PartitionName=urgent PriorityTier=9 PreemptMode=OFF
        """
        said = [line.strip() for line in lines.strip().splitlines()]
        said = [line for line in said if line.partition("=")[0] not in self._settings]
        said += [f"{name}={value}" for name, value in self._settings.items()]
        self.conf.write_text("".join(f"{line}\n" for line in said))
        for number in range(self.gpus):
            device = folder / "dev" / f"gpu{number}"
            with suppress(FileExistsError):
                os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        devices = f"{folder}/dev/gpu[0-{self.gpus - 1}]" if self.gpus > 1 else f"{folder}/dev/gpu0"
        (folder / "gres.conf").write_text(f"NodeName=n[0-{last}] Name=gpu Type=h100 File={devices}\n")
        half = max(1, self.nodes // 2)
        leaves = [f"SwitchName=leaf0 Nodes=n[0-{half - 1}]"]
        leaves += [f"SwitchName=leaf1 Nodes=n[{half}-{last}]"] if self.nodes > half else []
        top = f"SwitchName=spine Switches=leaf[0-{len(leaves) - 1}]"
        (folder / "topology.conf").write_text("\n".join([*leaves, top, ""]))

    def _start_services(self) -> None:
        """What must be there before the controller."""
        munge = self.folder / "munge"
        key = munge / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        words = ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={munge}/socket"]
        words += [f"--pid-file={munge}/pid", f"--seed-file={munge}/seed", f"--log-file={self.folder}/log/munged.log"]
        self._begin("munged", words)
        self._until(lambda: (munge / "socket").exists())

    def _begin(self, name: str, words: list[str]) -> None:
        with ExitStack() as stack:
            log = stack.enter_context((self.folder / "log" / f"{name}.out").open("ab"))
            self._processes[name] = subprocess.Popen(
                words, env={**os.environ, **self.env}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                preexec_fn=_die_with_parent,
            )  # fmt: skip

    def _end(self, name: str) -> None:
        process = self._processes.pop(name, None)
        if process is None:
            return
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)

    def _until(self, holds: object) -> None:
        assert callable(holds)
        end = time.monotonic() + PATIENCE_S
        while not holds():
            dead = [name for name, process in self._processes.items() if process.poll() is not None]
            if dead or time.monotonic() > end:
                told = "".join(
                    path.read_text(errors="replace")[-1500:] for path in sorted((self.folder / "log").glob("*"))
                )
                raise RuntimeError(f"Slurm did not come up ({', '.join(dead) or 'too slow'}): {told}")
            time.sleep(0.05)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
