"""A script for Slurm sent to the server, by sbatch, salloc and srun: read with the directives, in this environment.

A script may name an account or a partition that is no queue here: then its other name is tried, then the default queue.
Knows documents and the client, not how an answer is printed.
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from corral.client.blocking import Client
    from corral.wire.api.jobs import SubmitAnswer
    from corral.wire.job.job_files import Parsed

    Say = Callable[[str], None]


def read_script(text: str, name: str, options: Sequence[str], arguments: Sequence[str]) -> Parsed:
    """``options``: of the command line, as ``--name=value``."""
    from datetime import datetime

    from corral.wire.environment.export import with_environment
    from corral.wire.job.sbatch import read_sbatch

    umask = os.umask(0o022)
    os.umask(umask)
    zone = datetime.now().astimezone().tzinfo
    assert zone is not None, "astimezone sets a time zone"
    return read_sbatch(
        text,
        name,
        options=options,
        arguments=arguments,
        now_ms=time.time_ns() // 1_000_000,
        zone=zone,
        defaults={"directory": os.getcwd()} | ({"umask": f"{umask:03o}"} if umask != 0o022 else {}),
        exporter=lambda document: with_environment(document, os.environ),
    )


def submit_document(client: Client, document: dict[str, object], say: Say, key: str = "") -> SubmitAnswer:
    """Raises ``Problem``."""
    from corral.client.errors import Problem

    document = dict(document)
    labels = document.get("labels", {}) if document.get("compat") == "slurm" else {}
    assert isinstance(labels, dict)
    others = [labels[name] for name in ("slurm.partition",) if labels.get(name)] + ["default"] if labels else []
    while True:
        try:
            return client.submit(document, key=key, export="NONE")
        except Problem as problem:
            if not others or problem.code != "no_such_queue":
                raise
            missing, document["queue"] = document.get("queue", ""), others.pop(0)
            say(f"there is no queue {missing}; trying {document['queue']}")
