"""``corral up``: start a server on this machine, in the foreground or in the background."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from corral.cli.errors import FAULT, Complaint
from corral.cli.option_types import Span
from corral.cli.serve.data_folder import data_folder, data_option, database_option, remember_folder, running_server

if TYPE_CHECKING:
    from corral.core.accounts.identity import AccountRules
    from corral.core.cluster.topology import NodeSpec
    from corral.runtime.base import Backend
    from corral.server.main import Options
    from corral.wire.brokers.intake_rules import IntakeRules
    from corral.wire.config import Config
    from corral.wire.site.retention import AttestRules
    from corral.wire.topology import NodePlaces

_FILES = ("tasks", "tls_cert", "tls_key", "tls_ca", "config")
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@click.command()
@data_option
@database_option
@click.option("--tasks", metavar="FOLDER", default=None, help="Folder for tasks; servers on one machine share it.")
@click.option("--advertise", metavar="URL", default=None, help="URL at which other servers and clients reach this one.")
@click.option(
    "--peer",
    "peers",
    metavar="URL",
    multiple=True,
    help="URL of another server on the same database; may be repeated.",
)
@click.option("--listen", metavar="HOST:PORT", default=None, help="Address to listen on. Default: 127.0.0.1:7411.")
@click.option(
    "--agent-port",
    type=click.IntRange(0, 65_535),
    metavar="PORT",
    default=None,
    help="With --cluster: port for agents. Default: the next port. 0: any free port, kept across restarts.",
)
@click.option(
    "--connections",
    type=click.IntRange(min=1),
    metavar="NUMBER",
    default=None,
    help="Maximum number of client connections. Default: 4000. Agents are counted separately.",
)
@click.option("--tls-cert", metavar="FILE", default=None, help="TLS certificate, in PEM.")
@click.option("--tls-key", metavar="FILE", default=None, help="Key of the TLS certificate, in PEM.")
@click.option(
    "--tls-ca", metavar="FILE", default=None, help="Private certificate authority, for corral on this machine."
)
@click.option("--fake-gpus", metavar="8xH100", default=None, help="Simulate these GPUs instead of using real ones.")
@click.option(
    "--config",
    metavar="FILE",
    default=None,
    envvar="CORRAL_CONFIG",
    show_envvar=True,
    help="Configuration file; corral config init writes an example.",
)
@click.option("--policy", metavar="NAME", default=None, help="Scheduling policy; see: corral sim policies.")
@click.option("--cluster", is_flag=True, help="Run tasks on nodes that join (corral node token), not on this machine.")
@click.option("--kubernetes", is_flag=True, help="Run tasks as pods of a Kubernetes cluster, not on this machine.")
@click.option("--fleet", "cluster", is_flag=True, hidden=True)  # the name of --cluster in 0.1
@click.option(
    "--lease",
    type=Span(),
    metavar="TIME",
    default=None,
    help="With --cluster: how long tasks run without contact with the server. Default: 8s; on a shared database 15s.",
)
@click.option(
    "--account",
    metavar="ACCOUNT",
    default=None,
    envvar="CORRAL_ACCOUNT",
    show_envvar=True,
    help="Account that runs the jobs of users who have no account set.",
)
@click.option("--allow-plain-http", is_flag=True, help="Allow connections from other machines without TLS.")
@click.option("--detach", "-d", is_flag=True, help="Run in the background; return when the server is ready.")
@click.option(
    "--timeout", type=Span(), metavar="TIME", default="60s", show_default=True, help="With --detach: how long to wait."
)
def up(**given: Any) -> int:
    """Start a server on this machine. The first start creates an administrator and stores the token for you.

    Stop it with Ctrl-C or corral down. Running jobs continue and are picked up at the next start.
    """
    config = _config(given["config"])
    folder = data_folder(given["data"] or config.data)
    here = running_server(folder)
    if here is not None:
        from corral.cli.render import print_line

        if given["detach"]:
            print_line(f"a server is running already, at {here.url}; it keeps its options (corral down stops it)")
            return 0
        raise Complaint(
            f"a server uses {folder} already, at {here.url} (process {here.pid})", "stop it with: corral down"
        )
    options = _options(config, folder, given)
    remember_folder(folder)
    is_cluster = given["cluster"] or given["kubernetes"]
    if given["detach"]:
        from corral.cli.serve.detached import start_detached

        _note_first_start(options, is_cluster)
        return start_detached(folder, _again(given, folder), given["timeout"] / 1000)
    backend = _backend(given, Path(given["tasks"]).absolute() if given["tasks"] else folder, config)
    _check_free(options.host, options.port)
    _note_first_start(options, is_cluster)
    return _serve(options, backend, folder)


def _note_first_start(options: Options, is_cluster: bool) -> None:
    if not options.database and not (options.data / "journal.db").exists():
        _note_other_credentials(options)
        _note_missing_accounts(options, is_cluster)


def _note_other_credentials(options: Options) -> None:
    """One line at the first start where the command line has used another server until now."""
    from corral.cli.render import print_note
    from corral.server.vault.first_token import other_credentials

    found = other_credentials(options.credentials, options.public_url)
    if found is not None:
        print_note(f"your credentials for {found[0]} are kept in {found[1]}; commands use the new server from now on")


def _note_missing_accounts(options: Options, is_cluster: bool) -> None:
    """One line at the first start as root: which accounts must be set before jobs can run."""
    if os.geteuid() != 0 or is_cluster or options.accounts.default:
        return
    from corral.cli.render import print_note

    who = options.administrator
    if options.administrator_account:
        print_note(
            f"jobs of {who} run as {options.administrator_account}; others: corral user set NAME --account ACCOUNT"
        )
    else:
        print_note(
            f"no job runs as root: corral user set {who} --account ACCOUNT, or for all: corral up --account ACCOUNT"
        )


def _watched(node: NodeSpec, folder: Path, config: Config) -> Backend:
    """The runtime of this machine, with health monitoring unless it is turned off."""
    from corral.cli.serve.machine_settings import container_settings, local_settings
    from corral.health.monitor import Monitor
    from corral.health.watched import WatchedBackend
    from corral.runtime.machine import machine_backend

    backend = machine_backend(folder, node, local_settings(config), container_settings(config))
    return WatchedBackend(backend, Monitor(node, folder, config.health)) if config.health.is_on else backend


def _check_policy(name: str) -> None:
    from corral.cli.errors import unknown
    from corral.policy.catalog import CATALOG, PUBLISHED_NAMES

    if name not in (*CATALOG, *PUBLISHED_NAMES):
        raise unknown("policy", name, CATALOG)


def _serve(options: Options, backend: Backend, folder: Path) -> int:
    from corral.cli.serve.detached import announce
    from corral.server.main import CannotStart, serve
    from corral.store.journal import JournalBroken, JournalBusy, JournalUnusable

    announce(folder)
    try:
        return serve(options, backend)
    except (CannotStart, JournalUnusable) as error:
        raise Complaint(str(error).rstrip("."), "to find the cause: corral doctor", exit_code=FAULT) from None
    except JournalBusy as error:
        raise Complaint(str(error).rstrip("."), "stop it with: corral down", exit_code=FAULT) from None
    except JournalBroken as error:
        hint = "for all errors: corral db verify"
        raise Complaint(f"the journal is damaged: {error}", hint, exit_code=FAULT) from None


def _backend(given: dict[str, Any], folder: Path, config: Config) -> Backend:
    """The runtime: this machine, nodes that join, or pods."""
    if given["kubernetes"]:
        return _pods(given, folder, config)
    if not given["cluster"]:
        return _watched(_node(given["fake_gpus"]), folder, config)
    from corral.remote.backend import RemoteBackend
    from corral.remote.settings import LEASE_MS, SHARED_LEASE_MS, settings_for_lease

    if given["fake_gpus"] is not None:
        raise Complaint(
            "--cluster and --fake-gpus exclude each other", "simulated GPUs: corral agent --fake-gpus 8xH100"
        )
    is_shared = bool(given["database"] or config.database)
    lease_ms = given["lease"] or (SHARED_LEASE_MS if is_shared else LEASE_MS)
    settings = settings_for_lease(lease_ms, config.agents.farewell_ms)
    if fault := settings.fault():
        raise Complaint(f"--lease: {fault}", "a few seconds are usual; the default is 8s")
    return RemoteBackend(folder, settings)


def _pods(given: dict[str, Any], folder: Path, config: Config) -> Backend:
    from msgspec import structs

    from corral import __version__
    from corral.kubernetes.pod_backend import PodBackend
    from corral.wire.pods.pod_settings import PodSettings

    for option in ("cluster", "fake_gpus", "lease"):
        if given[option]:
            other = option.replace("_", "-")
            raise Complaint(f"--kubernetes and --{other} exclude each other", "the cluster says which nodes there are")
    settings = config.kubernetes or PodSettings()
    if not settings.supervisor_image:
        settings = structs.replace(settings, supervisor_image=f"corral:{__version__}")
    return PodBackend(folder, settings)


def _config(path: str | None) -> Config:
    from corral.cli.serve.config import read_file
    from corral.wire.config import Config

    return Config() if path is None else read_file(path)


def _options(config: Config, folder: Path, given: dict[str, Any]) -> Options:
    from corral.client.credentials import credentials_path
    from corral.server.api.http.settings import ApiSettings
    from corral.server.main import Options
    from corral.wire.config import PolicyChoice

    host, port = _address(given["listen"], config)
    certificate, key = given["tls_cert"] or config.tls_certificate, given["tls_key"] or config.tls_key
    ca = given["tls_ca"] or config.tls_ca
    _check_tls(certificate, key, ca)
    is_open = host not in _LOOPBACK and not certificate and not config.allow_plain_http
    if is_open and not given["allow_plain_http"]:
        what = f"{host} is reachable from other machines, and tokens would be sent unencrypted"
        raise Complaint(what, "give --tls-cert and --tls-key, or --allow-plain-http")
    if given["policy"]:
        _check_policy(given["policy"])
    return Options(
        data=folder,
        database=_database(given["database"] or config.database),
        advertise=(given["advertise"] or "").rstrip("/"),
        peers=_peers(given["peers"]),
        credentials=credentials_path(),
        host=host,
        port=port,
        policy=PolicyChoice(name=given["policy"]) if given["policy"] else config.policy,
        settings=config.settings,
        places=_node_places(config),
        rules=config.rules,
        secret_key_file=config.secrets.key_file,
        attest=_attest(config, folder),
        intake=_intake(config),
        health=config.health,
        queues=config.queues,
        administrator=config.administrator,
        administrator_account=_administrator_account(),
        accounts=_accounts(given["account"], config),
        keep_ended=config.keep_ended,
        keep_ended_ms=config.keep_ended_ms,
        tls_certificate=certificate,
        tls_key=key,
        tls_ca=os.path.abspath(ca) if ca else "",
        connections_max=given["connections"] or config.connections,
        agent_port=config.agents.port if given["agent_port"] is None else given["agent_port"],
        agent_connections_max=config.agents.connections,
        api=ApiSettings(
            body_bytes_max=config.api.body_mib << 20,
            batch_jobs_max=config.api.jobs_per_request,
            requests_per_s=config.api.requests_per_s,
            requests_burst=config.api.requests_at_once,
            job_limits=config.limits,
            default_queue=config.default_queue,
            prices=config.prices,
            audit_reads=config.audit.reads,
            sign_in=config.sign_in,
        ),
    )


def _intake(config: Config) -> IntakeRules:
    """The broker to take submissions from, if its library is installed."""
    from corral.integrations.broker_kinds import missing
    from corral.wire.brokers.broker_names import broker_kind

    broker = config.intake.broker
    if broker and (lack := missing(broker_kind(broker))):
        raise Complaint("intake: the library of the broker is not installed", f"install it with: {lack}")
    return config.intake


def _attest(config: Config, folder: Path) -> AttestRules:
    """Where signed heads are written, and the key that signs them."""
    from msgspec.structs import replace

    from corral.store.attest import KEY_FILE

    return replace(config.attest, key_file=config.attest.key_file or str(folder / KEY_FILE))


def _administrator_account() -> str:
    """The user who became root to start the server; their jobs run as their own account."""
    name = os.environ.get("SUDO_USER", "")
    return name if os.geteuid() == 0 and name != "root" and _is_account(name) else ""


def _is_account(name: str) -> bool:
    import pwd

    try:
        pwd.getpwnam(name)
    except (KeyError, ValueError):
        return False
    return True


def _accounts(stated: str | None, config: Config) -> AccountRules:
    from msgspec import structs

    if not stated:
        return config.accounts
    if not _is_account(stated):
        raise Complaint(f"--account: this machine has no account {stated!r}", "create it, or name another one")
    return structs.replace(config.accounts, default=stated)


def _peers(stated: tuple[str, ...]) -> tuple[str, ...]:
    for url in stated:
        if not url.startswith(("http://", "https://")):
            raise Complaint(f"{url!r} is not the address of a server", "write it as https://sched2.example:7411")
    return tuple(url.rstrip("/") for url in stated)


def _check_tls(certificate: str, key: str, ca: str) -> None:
    """Check before listening that the files can be read and match each other."""
    if bool(certificate) != bool(key):
        raise Complaint("a certificate and its key belong together", "give both --tls-cert and --tls-key")
    if not certificate:
        return
    import ssl

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
        if ca:
            ssl.create_default_context(cafile=ca)
    except ssl.SSLError as error:
        what = f"{certificate}, {key}" + (f" and {ca}" if ca else "")
        raise Complaint(f"{what} do not match, or are not PEM: {error.reason or error}", "check both files") from None
    except OSError as error:
        what = f"cannot read the TLS files: {error.strerror}"
        raise Complaint(what, "check --tls-cert, --tls-key and --tls-ca, and the permissions of the files") from None


def _database(address: str) -> str:
    from corral.wire.address import is_postgres, shown

    if address and not is_postgres(address):
        what = f"{shown(address)} is not the address of a PostgreSQL database"
        raise Complaint(what, "write it like postgresql://corral@db.example/corral")
    return address


def _address(listen: str | None, config: Config) -> tuple[str, int]:
    if listen is None:
        return config.address, config.port
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdecimal():
        raise Complaint(f"--listen: {listen!r} is not an address and a port", "write it like 127.0.0.1:7411")
    if int(port) > 65_535:
        raise Complaint(f"--listen: port {port} is not between 0 and 65535", "write it like 127.0.0.1:7411")
    name = host.strip("[]") or "127.0.0.1"
    return name, int(port) or _check_free(name, 0)  # 0: any free port


def _check_free(host: str, port: int) -> int:
    """Check before anything is created or locked; the port."""
    import errno
    import socket

    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            what = f"cannot listen on {host}:{port}: {(error.strerror or str(error)).lower()}"
            hints = {
                errno.EADDRINUSE: "another program uses it; choose another port with --listen",
                errno.EACCES: "ports below 1024 need root; choose another port with --listen",
            }
            hint = hints.get(error.errno or 0, f"{host} is no address of this machine; name one that is")
            raise Complaint(what, hint, FAULT) from None
        return int(probe.getsockname()[1])


def _node(fake_gpus: str | None) -> NodeSpec:
    """The node of this machine, with its GPUs or simulated ones."""
    from corral.runtime.gpus import simulated
    from corral.runtime.inventory import inventory

    try:
        gpus = None if fake_gpus is None else simulated(fake_gpus)
    except ValueError as error:
        raise Complaint(f"--fake-gpus: {error}", "write it like 8xH100 or 4xH100,4xA100") from None
    return inventory(gpus=gpus)


def _node_places(config: Config) -> NodePlaces:
    from corral.core.intake.refusal import Refusal
    from corral.wire.topology import NodePlaces, read_slurm_topology

    if not config.topology.slurm:
        return NodePlaces(config.topology)
    try:
        found = read_slurm_topology(Path(config.topology.slurm).read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise Complaint(f"topology: cannot read {config.topology.slurm}: {error}", "check topology.slurm") from None
    if isinstance(found, Refusal):
        raise Complaint(f"{config.topology.slurm}: {found.why}", found.hint)
    return NodePlaces(config.topology, found)


def _again(given: dict[str, Any], folder: Path) -> list[str]:
    """The same command for the process in the background."""
    words = ["up", "--data", str(folder)]
    if given["database"] is not None:
        os.environ["CORRAL_DATABASE"] = given["database"]  # command lines can be read by all users
    named = (
        "tasks",
        "advertise",
        "listen",
        "tls_cert",
        "tls_key",
        "tls_ca",
        "fake_gpus",
        "config",
        "policy",
        "account",
    )
    for name in named:
        if given[name] is not None:
            value = os.path.abspath(given[name]) if name in _FILES else given[name]  # it runs in another folder
            words += [f"--{name.replace('_', '-')}", value]
    words += [word for url in given["peers"] for word in ("--peer", url)]
    words += [f"--{name}" for name in ("cluster", "kubernetes") if given[name]]
    words += ["--lease", f"{given['lease']}ms"] if given["lease"] is not None else []
    for name in ("agent_port", "connections"):
        words += [f"--{name.replace('_', '-')}", str(given[name])] if given[name] is not None else []
    return [*words, *(["--allow-plain-http"] if given["allow_plain_http"] else [])]
