"""The configuration of a server: a YAML file in which every key is optional, and the defaults.

Errors are reported as for job files: all at once, with file, line and column, and the nearest key. Reads texts; opens
no file and changes nothing. Imports the catalogue of policies only when a policy is named.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct, structs

from corral.core.accounts.identity import AccountRules
from corral.core.intake.site import SiteRules
from corral.core.model import QueueSpec, Settings
from corral.wire.address import shown
from corral.wire.brokers.intake_rules import INTAKE, INTAKE_KEYS, IntakeRules
from corral.wire.container_rules import CONTAINER_KEYS, CONTAINERS, ContainerRules
from corral.wire.default_limits import RULE_KEYS, RULES
from corral.wire.document.errors import Enough, Fault, Path, Reading, Wrong, show
from corral.wire.document.key_table import Key, KeyTable, struct_kind, table_kind
from corral.wire.document.kinds import (
    FLAG,
    SIZE_OVER_ZERO,
    SPAN,
    SPAN_OVER_ZERO,
    ValueKind,
    bounded,
    listing,
    meant,
    number,
    text,
)
from corral.wire.document.yaml import PlacedFault, read_yaml
from corral.wire.health import HEALTH_KEYS, HEALTH_TABLE, HealthSettings
from corral.wire.identity_providers import SIGN_IN, SignInRules, write_sign_in
from corral.wire.job.demands import LEVEL
from corral.wire.job.document_limits import LIMITS, DocumentLimits
from corral.wire.job.failure_rules import FAILURES, FailureRule
from corral.wire.job.keys import QUEUE
from corral.wire.job.parse import DEFAULT_QUEUE
from corral.wire.job.program import PATH_TEXT
from corral.wire.pods.pod_settings import POD_KEYS, PODS, PodSettings
from corral.wire.queues import PAGE, QUEUE_KEYS, queue_of, write_queue
from corral.wire.run_as import ACCOUNT_KEYS, ACCOUNTS
from corral.wire.site.prices import PRICE_KEYS, PRICES, SitePrices
from corral.wire.site.retention import ATTEST, ATTEST_KEYS, SECRET_KEYS, SECRETS, AttestRules, SecretRules
from corral.wire.topology import TOPOLOGY_KEYS, TOPOLOGY_TABLE, TopologySource

DAY_MS = 86_400_000
QUEUE_DEPTH_MAX = 8
FILE_BYTES_MAX = 1 << 20


class LogRules(Struct, frozen=True, kw_only=True):
    """How much of the output of tasks is kept, and how long."""

    keep_ms: int = 30 * DAY_MS
    task_mib: int = 1024  # of one task; the oldest is dropped first
    total_mib: int = 100 * 1024
    user_mib: int | None = None  # of all tasks of one user on a machine
    scratch_mib: int | None = None  # in private directories of all tasks of one account on a machine


class ApiLimits(Struct, frozen=True, kw_only=True):
    """Limits of one request, and of the requests of one token per second."""

    body_mib: int = 32
    jobs_per_request: int = 5_000
    requests_per_s: int = 2_000  # for each token
    requests_at_once: int = 4_000  # burst


class AuditRules(Struct, frozen=True, kw_only=True):
    """What is recorded besides changes."""

    reads: bool = False


class AgentRules(Struct, frozen=True, kw_only=True):
    """The gateway for agents. ``port`` None: the port after the server's own."""

    port: int | None = None
    connections: int = 8_000
    farewell_ms: int = 60_000  # the lease that a stopping server leaves for its agents


class PolicyChoice(Struct, frozen=True, kw_only=True):
    """The scheduling policy and its settings."""

    name: str = "standard"
    reservations: int = 1  # number of blocked gangs with a reservation
    patience_ms: int = DAY_MS
    timeout_ms: int = 30_000  # a plan that takes longer has failed


class Config(Struct, frozen=True, kw_only=True):
    """All settings of a server. ``data`` empty: the default of the command line."""

    data: str = ""
    database: str = ""
    address: str = "127.0.0.1"
    port: int = 7411
    tls_certificate: str = ""
    tls_key: str = ""
    tls_ca: str = ""  # for the command line of this machine
    allow_plain_http: bool = False  # listen beyond this machine without TLS
    connections: int = 4_000  # of clients
    agents: AgentRules = AgentRules()
    administrator: str = "admin"
    accounts: AccountRules = AccountRules()
    policy: PolicyChoice = PolicyChoice()
    settings: Settings = Settings()
    logs: LogRules = LogRules()
    containers: ContainerRules = ContainerRules()
    keep_ended_ms: int = DAY_MS  # how long ended jobs stay in memory; they stay in the journal
    keep_ended: int = 1_000  # and how many of them at most
    rules: SiteRules = SiteRules()
    secrets: SecretRules = SecretRules()
    attest: AttestRules = AttestRules()
    sign_in: SignInRules = SignInRules()
    limits: DocumentLimits = LIMITS
    api: ApiLimits = ApiLimits()
    audit: AuditRules = AuditRules()
    failures: tuple[FailureRule, ...] = ()
    health: HealthSettings = HealthSettings()
    kubernetes: PodSettings | None = None  # None: no tasks as pods
    topology: TopologySource = TopologySource()
    intake: IntakeRules = IntakeRules()
    prices: SitePrices = SitePrices()
    default_queue: str = DEFAULT_QUEUE
    queues: tuple[QueueSpec, ...] = (QueueSpec(name=DEFAULT_QUEUE),)


# --- parts -----------------------------------------------------------------------------------------------------------


def _policies() -> list[str]:
    from corral.policy.catalog import CATALOG, PUBLISHED_NAMES  # only when a policy is named: it imports all of them

    return [*CATALOG, *PUBLISHED_NAMES]


def _read_policy_name(value: Any, _path: Path, _reading: Reading) -> str:
    known = _policies()
    if value not in known:
        raise Wrong("no_such_policy", f"there is no policy {show(value)}", meant(value, known))
    return str(value)


_POLICY_NAME = ValueKind(_read_policy_name, {"type": "string"}, "the name of a policy")
POLICY_KEYS = KeyTable(
    "policy",
    [
        Key("name", _POLICY_NAME, "Scheduling policy.", "standard", default="standard", into="name"),
        Key("reservations", number("a number of gangs", 0, 1000), "Number of blocked gangs that get a reservation.",
            1, default="1", into="reservations"),
        Key("patience", SPAN_OVER_ZERO, "After this wait, the oldest gang goes first within its priority.",
            "1d", default="1d", into="patience_ms"),
        Key("timeout", SPAN_OVER_ZERO, "Time limit of a plan.", "30s", default="30s", into="timeout_ms"),
    ],
)  # fmt: skip
_POLICY_TABLE = struct_kind(POLICY_KEYS, "a policy", PolicyChoice)


def _read_policy(value: Any, path: Path, reading: Reading) -> Any:
    if type(value) is str:
        return PolicyChoice(name=_read_policy_name(value, path, reading))
    return _POLICY_TABLE.read(value, path, reading)


LISTEN_KEYS = KeyTable(
    "listen",
    [
        Key("address", text("an address"), "Address to listen on.", "0.0.0.0", default="127.0.0.1", into="address"),
        Key("port", number("a port", 0, 65_535), "Port to listen on.", 7411, default="7411", into="port"),
        Key("tls_certificate", PATH_TEXT, "TLS certificate with its chain, in PEM.",
            "/etc/corral/tls.pem", into="tls_certificate"),
        Key("tls_key", PATH_TEXT, "Key of the certificate, in PEM.", "/etc/corral/tls.key", into="tls_key"),
        Key("tls_ca", PATH_TEXT, "Certificate authority, if it is private; used by `corral` on this machine.",
            "/etc/corral/ca.pem", into="tls_ca"),
        Key("allow_plain_http",
            FLAG, "Allow connections from other machines without TLS; tokens are then sent unencrypted.",
            False, default="false", into="allow_plain_http"),
        Key("connections", number("a number of connections", 1, 1_000_000),
            "Maximum number of open connections; further ones are refused with status 503.",
            4000, default="4000", into="connections"),
    ],
)  # fmt: skip
FAIRNESS_KEYS = KeyTable(
    "fairness",
    [
        Key("half_life", SPAN_OVER_ZERO, "Half-life of past usage.",
            "7d", default="7d", into="half_life_ms"),
        Key("entry_charge", SPAN,
            "Usage charged at once when a gang starts, so that many starts in a row gain no advantage.",
            "1h", default="1h", into="entry_charge_ms"),
        Key("default_estimate", SPAN_OVER_ZERO, "Assumed run time of jobs without `time_limit` and `estimate`.",
            "1d", default="1d", into="default_expected_ms"),
    ],
)  # fmt: skip
LOG_KEYS = KeyTable(
    "logs",
    [
        Key("keep", SPAN_OVER_ZERO, "How long to keep logs after the end of a job.", "30d", default="30d",
            into="keep_ms"),
        Key("per_task", SIZE_OVER_ZERO, "Maximum size of the logs of one task; the oldest part is dropped first.",
            "1GiB", default="1GiB", into="task_mib"),
        Key("per_user", SIZE_OVER_ZERO,
            "Maximum size of the logs of one user on a machine; the oldest logs of ended jobs are dropped first.",
            "20GiB", default="a fair share of total", into="user_mib"),
        Key("total", SIZE_OVER_ZERO,
            "Maximum size of all logs on a machine; above it, the oldest logs of the users with most logs are dropped.",
            "100GiB", default="100GiB", into="total_mib"),
        Key("scratch_per_account", SIZE_OVER_ZERO,
            "How much tasks of one account may keep in private directories (TMPDIR) on a machine; an account that "
            "exceeds it is warned, then its largest task is ended.", "50GiB", default="no limit", into="scratch_mib"),
    ],
)  # fmt: skip
API_KEYS = KeyTable(
    "api",
    [
        Key("body", SIZE_OVER_ZERO, "Maximum size of a request body.", "32MiB", default="32MiB", into="body_mib"),
        Key("jobs_per_request", number("a number of jobs", 1, 1_000_000), "Maximum number of jobs in one request.",
            5_000, default="5000", into="jobs_per_request"),
        Key("requests_per_s", number("a number of requests", 1), "Maximum rate of requests with one token, per second.",
            2000, default="2000", into="requests_per_s"),
        Key("requests_at_once", number("a number of requests", 1),
            "Burst: requests with one token before the rate applies.",
            4000, default="4000", into="requests_at_once"),
    ],
)  # fmt: skip
AUDIT_KEYS = KeyTable(
    "audit",
    [
        Key("reads", FLAG, "Also record who reads logs, names of secrets, the audit record and jobs of other users.",
            False, default="false", into="reads"),
    ],
)  # fmt: skip
AGENT_KEYS = KeyTable(
    "agents",
    [
        Key("port", number("a port", 0, 65_535), "Port for agents; 0: any free port, kept across restarts.",
            7412, default="the one after listen.port", into="port"),
        Key("connections", number("a number of connections", 1, 1_000_000), "Maximum number of connected agents.",
            8000, default="8000", into="connections"),
        Key("farewell", SPAN_OVER_ZERO, "How long tasks continue after an orderly stop of the server.",
            "60s", default="60s", into="farewell_ms"),
    ],
)  # fmt: skip
LIMIT_KEYS = KeyTable(
    "limits",
    [
        Key(name, number("a number", 1), "See the limits in docs/job-file.md.", getattr(LIMITS, name),
            default=str(getattr(LIMITS, name)), into=name)
        for name in LIMITS.__struct_fields__
    ],
)  # fmt: skip


# --- queues ----------------------------------------------------------------------------------------------------------

_PART = text("a part of a queue's path", most="name_chars", pattern=r"[A-Za-z0-9][A-Za-z0-9._-]*")


def _read_queues(value: Any, path: Path, reading: Reading) -> tuple[QueueSpec, ...]:
    return tuple(_queues_below("", value, path, reading))


def _queues_below(parent: str, value: Any, path: Path, reading: Reading) -> Iterator[QueueSpec]:
    """Parents before their children."""
    if type(value) is not dict:
        raise Wrong("wrong_type", f"this must be a mapping of queues, not {show(value)}", "write lab: {guarantee: 8}")
    if parent.count("/") + 1 > QUEUE_DEPTH_MAX:
        raise Wrong("too_deep", f"queues are nested more than {QUEUE_DEPTH_MAX} deep")
    bounded(value, 10_000)
    for name, terms in value.items():
        here = (*path, name if isinstance(name, str) else show(name))
        try:
            whole = f"{parent}/{_PART.read(name, here, reading)}".lstrip("/")
            found = _TREE_KEYS.read({} if terms is None else terms, here, reading)
            yield queue_of(found, whole)
            if "queues" in found:
                yield from _queues_below(whole, found["queues"], (*here, "queues"), reading)
        except Wrong as wrong:
            reading.wrong(here, wrong)


_TREE = ValueKind(lambda value, _path, _reading: value, {"type": "object"}, "a mapping of queues")
_TREE_KEY = Key("queues", _TREE, "Child queues.", {"vision": {"guarantee": 8}})
_TREE_KEYS = KeyTable("queue", (*QUEUE_KEYS.keys, _TREE_KEY), QUEUE_KEYS.elsewhere, PAGE)

_DATABASE = text(
    "the address of a PostgreSQL database",
    pattern=r"postgres(ql)?://[\s\S]*",
    hint="write it like postgresql://corral@db.example/corral",
)

CONFIG_KEYS = KeyTable(
    "configuration",
    [
        Key("data", PATH_TEXT, "Data folder.", "/var/lib/corral", into="data"),
        Key("database", _DATABASE,
            "PostgreSQL database to use instead of a file in `data`; several servers can share it.",
            "postgresql://corral@db.example/corral", into="database"),
        Key("listen", table_kind(LISTEN_KEYS, "a mapping"), "Address, port and TLS of the server.", {"port": 7411}),
        Key("agents", struct_kind(AGENT_KEYS, "a mapping", AgentRules), "Port and connections for agents.",
            {"port": 7412}, into="agents"),
        Key("administrator", text("a name", most="name_chars"),
            "Name of the first administrator, created at the first start.",
            "admin", default="admin", into="administrator"),
        Key("accounts", ACCOUNTS, "Unix accounts that jobs run as.", {"default": "research"}, into="accounts"),
        Key("policy", ValueKind(_read_policy, {"anyOf": [_POLICY_NAME.schema, POLICY_KEYS.schema]}, "a policy"),
            "Scheduling policy: a name, or a mapping.", "standard", default="standard", into="policy"),
        Key("levels", listing(LEVEL, "a list of levels", "models"), "Levels of the topology, the largest first.",
            ["zone", "rack"], default="none"),
        Key("topology", TOPOLOGY_TABLE, "Positions of nodes in these levels.", {"slurm": "/etc/slurm/topology.conf"},
            into="topology"),
        Key("fairness", table_kind(FAIRNESS_KEYS, "a mapping"), "Decay of past usage.", {"half_life": "7d"}),
        Key("logs", struct_kind(LOG_KEYS, "a mapping", LogRules), "Retention of the logs of tasks.",
            {"keep": "30d"}, into="logs"),
        Key("containers", CONTAINERS, "How jobs with an image are run.", {"pull": "missing"}, into="containers"),
        Key("keep_ended", SPAN, "How long ended jobs stay in memory; the journal keeps them.",
            "1d", default="1d", into="keep_ended_ms"),
        Key("keep_ended_jobs", number("a number of jobs", 0, 10_000_000), "Maximum number of ended jobs in memory.",
            1000, default="1000", into="keep_ended"),
        Key("jobs", RULES, "Limits on jobs, unless a queue sets its own.",
            {"priority_ceiling": 100}, into="rules"),
        Key("secrets", SECRETS, "How secrets are encrypted.", {"key_file": "/etc/corral/secrets.key"},
            into="secrets"),
        Key("attest", ATTEST, "Signed heads of the journal, stored elsewhere.", {"file": "/mnt/audit/corral.heads"},
            into="attest"),
        Key("sign_in", SIGN_IN, "Sign-in with identity providers, and of programs.",
            {"providers": {"company": {"issuer": "https://login.example.org/realms/lab", "client_id": "corral"}}},
            into="sign_in"),
        Key("limits", table_kind(LIMIT_KEYS, "a mapping"), "Limits on the size of a job document.",
            {"array_size": 100_000}),
        Key("api", struct_kind(API_KEYS, "a mapping", ApiLimits), "Limits on requests.", {"body": "32MiB"}, into="api"),
        Key("audit", struct_kind(AUDIT_KEYS, "a mapping", AuditRules),
            "What the audit record contains besides changes.", {"reads": True}, into="audit"),
        Key("failures", FAILURES, "Failures that Corral does not know, and their classes.",
            [{"says": "transport retry counter exceeded", "class": "network"}], default="none", into="failures"),
        Key("kubernetes", PODS, "Tasks as pods, with `corral up --kubernetes`.", {"namespace": "training"},
            into="kubernetes"),
        Key("health", HEALTH_TABLE, "Thresholds of the health monitor.", {"interval": "10s"}, into="health"),
        Key("intake", INTAKE, "Broker that the server takes submissions from.",
            {"broker": "amqp://corral@mq.example/corral"}, into="intake"),
        Key("prices", PRICES, "What a GPU-hour costs, for what the dashboard and `/v1/usage/parts` show.",
            {"currency": "EUR", "gpu_hour": {"H100": 2.5}}, into="prices"),
        Key("default_queue", QUEUE, "Queue for jobs that name none.", "default", default="default",
            into="default_queue"),
        Key("queues", ValueKind(_read_queues, {"type": "object"}, "a mapping of queues"),
            "Queues created at the first start; afterwards use `corral queue`.",
            {"lab": {"guarantee": 16, "queues": {"vision": {"guarantee": 8}}}}, default="one: default", into="queues"),
    ],
    {"port": "it belongs below listen", "address": "it belongs below listen", "host": "it belongs below listen"},
    PAGE,
)  # fmt: skip


# --- the whole -------------------------------------------------------------------------------------------------------


def parse_config(document: object, *, now_ms: int = 0) -> Config | list[Fault]:
    reading = Reading(LIMITS, now_ms)
    try:
        found = CONFIG_KEYS.read(document, (), reading)
        config = Config()
        if not reading.faults:
            config = _config(found)
            _check(config, found, reading)
        if not reading.faults:
            return config
    except Wrong as wrong:
        reading.faults.append(Fault((), wrong.code, wrong.why, wrong.hint))
    except Enough:
        pass
    return reading.faults


def _config(found: dict[str, Any]) -> Config:
    settings = Settings(levels=found.get("levels", ()), **FAIRNESS_KEYS.fields(found.get("fairness", {})))
    limits = structs.replace(LIMITS, **LIMIT_KEYS.fields(found.get("limits", {})))
    listen = LISTEN_KEYS.fields(found.get("listen", {}))
    stated = CONFIG_KEYS.fields(found)
    if "queues" not in found and "default_queue" in found:
        stated["queues"] = (QueueSpec(name=found["default_queue"]),)
    return Config(settings=settings, limits=limits, **listen, **stated)


def _check(config: Config, found: dict[str, Any], reading: Reading) -> None:
    """Checks of keys that depend on each other."""
    if bool(config.tls_certificate) != bool(config.tls_key):
        missing = "tls_key" if config.tls_certificate else "tls_certificate"
        reading.fault(("listen", missing), "missing", f"{missing} is missing", "give the certificate and its key")
    is_local = config.address in ("127.0.0.1", "::1", "localhost")
    if not is_local and not config.tls_certificate and not config.allow_plain_http:
        why = f"{config.address} is reachable from other machines, and tokens would be sent unencrypted"
        hint = "give tls_certificate and tls_key, or allow_plain_http: true"
        reading.fault(("listen", "address"), "plain_http", why, hint)
    if config.default_queue not in {queue.name for queue in config.queues}:
        why = f"the default queue is {config.default_queue}, but there is no such queue"
        path: Path = ("default_queue",) if "default_queue" in found else ("queues",)
        reading.fault(path, "no_such_queue", why, "add it to queues, or name another default_queue")
    if not config.intake.broker and "intake" in found:
        hint = "write it like amqp://corral@mq.example/corral"
        reading.fault(("intake", "broker"), "missing", "the address of the broker is missing", hint)
    if len(set(config.settings.levels)) != len(config.settings.levels):
        reading.fault(("levels",), "duplicate", "a level is named twice", "name every level once")


def read_config(text: str, name: str, *, now_ms: int = 0) -> Config | list[PlacedFault]:
    """The configuration in a file; every error with ``file:line:column``. An empty file means the defaults."""
    documents = read_yaml(text, name, FILE_BYTES_MAX)
    if not documents:
        return Config()
    marks = documents[0]
    faults = [fault for each in documents for fault in each.faults]
    if marks.value is None and not faults:
        return Config()
    found = parse_config(marks.value, now_ms=now_ms) if marks.value is not None else []
    if isinstance(found, Config):
        return sorted(faults, key=_by_place) if faults else found
    return sorted([*faults, *(marks.placed(each) for each in found)], key=_by_place)


def _by_place(fault: PlacedFault) -> tuple[int, int]:
    return fault.place.line, fault.place.column


def write_config(config: Config) -> dict[str, Any]:
    """The effective configuration as a document, including defaults: ``parse_config`` reads it back."""
    written: dict[str, Any] = {"data": config.data} if config.data else {}
    if config.database:
        written["database"] = shown(config.database)  # the file may be readable by every user who may start a server
    written["listen"] = _written(config, LISTEN_KEYS)
    written["agents"] = _written(config.agents, AGENT_KEYS)
    written["administrator"] = config.administrator
    written["accounts"] = _written(config.accounts, ACCOUNT_KEYS)
    written["policy"] = _written(config.policy, POLICY_KEYS)
    written["levels"] = list(config.settings.levels)
    written["fairness"] = _written(config.settings, FAIRNESS_KEYS)
    written["logs"] = _written(config.logs, LOG_KEYS)
    written["containers"] = _written(config.containers, CONTAINER_KEYS)
    written["keep_ended"] = CONFIG_KEYS.by_name["keep_ended"].kind.write(config.keep_ended_ms)
    written["keep_ended_jobs"] = config.keep_ended
    written["jobs"] = _written(config.rules, RULE_KEYS)
    written["secrets"] = _written(config.secrets, SECRET_KEYS)
    written["attest"] = _written(config.attest, ATTEST_KEYS)
    if config.sign_in.is_on:
        written["sign_in"] = write_sign_in(config.sign_in)
    written["limits"] = _written(config.limits, LIMIT_KEYS)
    written["api"] = _written(config.api, API_KEYS)
    written["audit"] = _written(config.audit, AUDIT_KEYS)
    if config.failures:
        written["failures"] = FAILURES.write(config.failures)
    written["health"] = _written(config.health, HEALTH_KEYS)
    if config.kubernetes is not None:
        written["kubernetes"] = _written(config.kubernetes, POD_KEYS)
    written["topology"] = _written(config.topology, TOPOLOGY_KEYS)
    if config.intake.broker:
        written["intake"] = _written(config.intake, INTAKE_KEYS)
    if config.prices.is_stated:
        written["prices"] = _written(config.prices, PRICE_KEYS)
    written["default_queue"] = config.default_queue
    written["queues"] = _tree(config.queues)
    return written


def _written(part: object, table: KeyTable) -> dict[str, Any]:
    return {
        key.name: key.kind.write(value) for key in table.keys if (value := getattr(part, key.into)) not in ("", None)
    }


def _tree(queues: tuple[QueueSpec, ...]) -> dict[str, Any]:
    root: dict[str, Any] = {}
    for spec in queues:
        below = root
        *parents, last = spec.name.split("/")
        for parent in parents:
            below = below.setdefault(parent, {}).setdefault("queues", {})
        below[last] = below.get(last, {}) | {key: value for key, value in write_queue(spec).items() if key != "name"}
    return root
