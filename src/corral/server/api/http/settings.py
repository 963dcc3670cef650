"""The limits of the API: sizes, rates and times. Values only."""

from __future__ import annotations

from msgspec import Struct

from corral.wire.config import ApiLimits
from corral.wire.identity_providers import SignInRules
from corral.wire.job import DEFAULT_QUEUE, LIMITS, DocumentLimits
from corral.wire.site.prices import SitePrices

_CONFIGURED = ApiLimits()  # the defaults of the configuration file


class ApiSettings(Struct, frozen=True, kw_only=True):
    """Limits on everything that a hostile or careless client could use up."""

    body_bytes_max: int = _CONFIGURED.body_mib << 20
    batch_jobs_max: int = _CONFIGURED.jobs_per_request
    bodies_bytes_max: int = 256 << 20  # all bodies being read, together
    head_timeout_s: float = 15.0  # from the connection, or the first byte of a later request, to the complete head
    body_timeout_s: float = 30.0  # for the complete body
    body_rate_min: float = 4_096.0  # bytes per second, on average since the head, once the allowance is used up
    body_allowance_s: float = 5.0
    head_bytes_max: int = 64 << 10  # one head; a longer one closes the connection while it still arrives
    heads_bytes_max: int = 64 << 20  # all heads being read, together
    header_bytes_max: int = 32 << 10  # names and values
    headers_max: int = 100
    requests_per_s: float = _CONFIGURED.requests_per_s  # of one token, on average
    requests_burst: int = _CONFIGURED.requests_at_once
    failures_max: int = 10  # bad tokens of one address before it has to wait; on this machine five times as many
    streams_max: int = 2_048  # of the whole server
    streams_reserve: int = 256  # of these, for users who have few open
    streams_per_address: int = 1_024
    streams_per_user: int = 128
    streams_per_token: int = 64
    session_ms: int = 7 * 86_400_000  # a session of a browser ends after this time
    session_idle_ms: int = 12 * 3_600_000  # or after this time without a request
    session_code_ms: int = 60_000  # a code for signing in
    heartbeat_s: float = 15.0
    send_timeout_s: float = 10.0  # a connection is closed when its client reads nothing for this time
    unread_bytes_max: int = 256 << 20  # all that was sent and not yet read by clients, together
    log_poll_s: float = 0.1
    secret_bytes_max: int = 64 << 10
    audit_reads: bool = False  # whether reads of logs, names of secrets and others' jobs are recorded in the journal
    metrics_open: bool = False  # whether clients on this machine get metrics without a token
    reader_threads: int = 4
    log_threads: int = 2  # logs have their own threads, so that following them does not delay other reads
    sign_in: SignInRules = SignInRules()
    job_limits: DocumentLimits = LIMITS
    prices: SitePrices = SitePrices()  # of GPU-hours, for what people see
    default_queue: str = DEFAULT_QUEUE  # for a job that names none
