"""Limits on the size of a job document. A server may configure others; these are the defaults."""

from __future__ import annotations

from msgspec import Struct


class DocumentLimits(Struct, frozen=True, kw_only=True):
    """The limits of a job document.

    A command is passed as arguments, and Linux allows at most 131,072 bytes in one: hence ``command_bytes``.
    """

    name_chars: int = 128
    text_chars: int = 4096  # paths, images, patterns
    command_bytes: int = 120_000
    env_count: int = 1_000
    env_chars: int = 65_536  # one value
    env_bytes: int = 131_072  # all together
    labels: int = 64
    label_chars: int = 256
    array_size: int = 10_000
    gangs: int = 64
    tasks: int = 100_000
    gpus: int = 1_024  # of one task
    after: int = 1_000
    models: int = 32
    mounts: int = 64
    resources: int = 32
    quota_changes: int = 256  # of one queue
    faults: int = 50  # errors that are reported at once
    file_bytes: int = 4 << 20  # of a file of jobs
    documents: int = 1_000  # in one file
    nodes_yaml: int = 200_000  # values in one file, aliases expanded


LIMITS = DocumentLimits()
