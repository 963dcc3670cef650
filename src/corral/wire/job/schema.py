"""The JSON Schema of a job document and its reference page, both from the table of keys."""

from __future__ import annotations

from typing import Any

from corral.wire.document.key_reference import section
from corral.wire.job.document_limits import LIMITS
from corral.wire.job.keys import GANG_KEYS, GPU_KEYS, JOB_KEYS
from corral.wire.job.parse import GANGS_KEY, JOB_FILE
from corral.wire.job.timing import RETRY_KEYS

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def job_schema() -> dict[str, Any]:
    """For editors and OpenAPI. All that ``parse_job`` accepts is valid; only the parser knows grammars inside texts."""
    return {
        "$schema": DIALECT,
        "title": "Job",
        "description": "A job for Corral. Only the command is required.",
        **JOB_FILE.schema,
        "anyOf": [{"required": ["command"]}, {"required": ["gangs"]}],
        "maxProperties": len(JOB_FILE.keys),
    }


def reference_page() -> str:
    """docs/job-file.md"""
    parts = [
        _HEAD,
        section("The job", "", JOB_KEYS),
        section("A gang", _GANG, GANG_KEYS),
        section("`gpu`", "", GPU_KEYS),
        section("A rule of `retries`", _RETRIES, RETRY_KEYS),
        f"## Several gangs\n\n{GANGS_KEY.help}\n\n```yaml\n{_GANGS_EXAMPLE}```\n",
        _UNITS,
        _limits(),
    ]
    return "\n".join(parts)


def _limits() -> str:
    rows = "\n".join(f"| `{name}` | {getattr(LIMITS, name):,} |" for name in LIMITS.__struct_fields__)
    text = "Defaults; the configuration of a server can change them."
    return f"## Limits\n\n{text}\n\n| limit | at most |\n|---|---|\n{rows}\n"


_HEAD = """# The job file

Made from the table in `corral.wire.job.keys`; `make accept` writes it again.

A job is a YAML file (`corral submit job.yaml`) or the JSON body of `POST /v1/jobs`: the same keys. Only `command`
is required. Unknown keys are errors; all errors are reported at once, as `file:line:column`. Several jobs in one file
are separated by `---`. Scripts with `#SBATCH` lines are accepted unmodified. Examples are in
[examples/jobs](../examples/jobs).

```yaml
name: train-7b
queue: lab/vision
command: python train.py --config 7b.yaml
gpus: 8xH100
nodes: 4
processes: gpu
prefer: {level: rack, wait: 10m}
time_limit: 2d
checkpoints: true
```
"""
_GANG = """At the top of the file they describe the only gang, `main`. Beside `gangs` they are defaults for every
gang; `env` and `secrets` are merged. Amounts are per task."""
_RETRIES = """`retries: 3` retries after errors of the user's program. A mapping has a rule for each class of failure
(`user_error`, `out_of_memory`, `vram_exceeded`, `gpu_fault`, `network`, `node_lost`, `killed`, `stalled`,
`start_failed`, `time_limit`): a number, `forever`, or the keys below; keys that are not given have the defaults of the
class. Faults of the infrastructure never use up the user's retries."""
_GANGS_EXAMPLE = """env: {RUN: "17"}
gangs:
  - role: trainer
    command: python train.py
    gpus: 8
    tasks: 4
  - role: reader
    command: python read.py
    cpus: 16
"""
_UNITS = """## Units

- Durations: `90s`, `45m`, `6h`, `1d12h`, `2w`. A number without a unit is refused.
- Times: `2026-05-01T08:00:00Z`, with its zone; or `+2h` from now.
- Sizes: `512MiB`, `64GiB` (or `64Gi`) are powers of 1024, `40GB` powers of 1000; rounded up to whole MiB. `64G` is
  refused: Slurm and Kubernetes read it differently.
- VRAM of a GPU: `40GB..`, `40GB..80GB`, `..48GB`, `>=40GB`, or `80GB` for cards sold as 80 GB. A card of
  80 GB reports 81,559 MiB, more than 80 GB and less than 80 GiB; so in these ranges GB is decimal as a lower bound and
  binary as an upper one, and every card is within the size it is sold as. `GiB` is exact.
"""
