"""The bounds of the interface: how much, how often, how long. Values only."""

from __future__ import annotations

from msgspec import Struct

from corral.wire.job import DEFAULT_QUEUE, LIMITS, Limits


class ApiSettings(Struct, frozen=True, kw_only=True):
    """Everything a hostile or careless client could otherwise use up."""

    body_bytes_max: int = 1 << 20
    batch_bytes_max: int = 16 << 20
    batch_jobs_max: int = 5_000
    bodies_bytes_max: int = 256 << 20  # all bodies that are being read, together
    head_timeout_s: float = 15.0  # from the connection, or the first byte of a later request, to the whole head
    body_timeout_s: float = 30.0  # for the whole of a body, however slowly it comes
    head_bytes_max: int = 64 << 10  # of a head as it is sent; beyond, the connection ends while it still arrives
    heads_bytes_max: int = 64 << 20  # all heads that are being read, together
    header_bytes_max: int = 32 << 10  # names and values
    headers_max: int = 100
    requests_per_s: float = 5_000.0  # of one token, in the long run
    requests_burst: int = 10_000
    failures_max: int = 10  # bad tokens of one address before it has to wait; on this machine five times as many
    streams_max: int = 2_048  # of the whole server
    streams_reserve: int = 256  # of these, for users who have only a few
    streams_per_address: int = 1_024
    streams_per_user: int = 128
    streams_per_token: int = 64
    heartbeat_s: float = 15.0
    send_timeout_s: float = 10.0  # a connection whose client takes nothing for so long is cut off
    unread_bytes_max: int = 256 << 20  # all that was answered and not yet taken, together
    log_poll_s: float = 0.1
    secret_bytes_max: int = 64 << 10
    audit_reads: bool = False  # whether reads of logs, names of secrets and others' jobs are written into the record
    metrics_open: bool = False  # whether metrics are told without a token to clients on this machine
    reader_threads: int = 4
    log_threads: int = 2  # logs are read apart, so that those who follow them delay nobody else
    job_limits: Limits = LIMITS
    default_queue: str = DEFAULT_QUEUE  # of a job that names none
