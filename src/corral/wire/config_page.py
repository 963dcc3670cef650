"""docs/configuration.md, made from the tables of the configuration."""

from __future__ import annotations

from corral.wire import config, queues
from corral.wire.container_rules import CONTAINER_KEYS
from corral.wire.default_limits import RULE_KEYS
from corral.wire.document.key_reference import section
from corral.wire.health import HEALTH_KEYS
from corral.wire.identity_providers import ISSUER_KEYS, PROGRAM_RULE_KEYS, PROVIDER_KEYS, ROLE_RULE_KEYS, SIGN_IN_KEYS
from corral.wire.job.failure_rules import FAILURE_KEYS
from corral.wire.pods.pod_settings import POD_KEYS
from corral.wire.run_as import ACCOUNT_KEYS
from corral.wire.site.retention import ATTEST_KEYS, SECRET_KEYS
from corral.wire.topology import TOPOLOGY_KEYS


def configuration_page() -> str:
    parts = [
        _HEAD,
        section("The file", "", config.CONFIG_KEYS),
        section("`listen`", "", config.LISTEN_KEYS),
        section("`agents`", "Used with `corral up --cluster`.", config.AGENT_KEYS),
        section("`accounts`", "See [security](security.md#accounts-of-jobs).", ACCOUNT_KEYS),
        section("`policy`", "", config.POLICY_KEYS),
        section("`topology`", _TOPOLOGY, TOPOLOGY_KEYS),
        section("`fairness`", "", config.FAIRNESS_KEYS),
        section("`logs`", "", config.LOG_KEYS),
        section("`containers`", "See [containers](operate/containers.md).", CONTAINER_KEYS),
        section("`kubernetes`", "See [on Kubernetes](operate/on-kubernetes.md).", POD_KEYS),
        section("`jobs`", _JOBS, RULE_KEYS),
        section("`secrets`", "See [security](security.md#secrets).", SECRET_KEYS),
        section("`attest`", "See [the journal](journal.md#heads-stored-elsewhere).", ATTEST_KEYS),
        section("`sign_in`", "See [sign-in](operate/sign-in.md).", SIGN_IN_KEYS),
        section("One of `sign_in.providers`", "", PROVIDER_KEYS),
        section("One of `roles` of a provider", "", ROLE_RULE_KEYS),
        section("One of `sign_in.issuers`", "", ISSUER_KEYS),
        section("One of `rules` of an issuer", "", PROGRAM_RULE_KEYS),
        section("`api`", "", config.API_KEYS),
        section("`audit`", "See [security](security.md#who-read-what).", config.AUDIT_KEYS),
        section("One of `failures`", _FAILURES, FAILURE_KEYS),
        section("`health`", _HEALTH, HEALTH_KEYS),
        section("A queue", _QUEUE, queues.QUEUE_KEYS),
        section("`budget`", "", queues.BUDGET_KEYS),
        section("One of `changes`", "", queues.CHANGE_KEYS),
        "The keys of `limits` are in [the job file](job-file.md#limits).\n",
    ]
    return "\n".join(parts)


_FAILURES = """When a process fails, these rules are tried in order, then a table of what CUDA, ROCm and NCCL print.
The first that applies gives the failure class, and so decides about [retries](job-file.md). They are rules of
each machine: agents read them from their own `--config`.
"""
_HEAD = """# The configuration file

Made from the tables in `corral.wire.config` and `corral.wire.queues`; `make accept` writes it again.

`corral up --config FILE`. Every key is optional; `corral config` shows the effective values. All errors are
reported at once, as `file:line:column`.

```yaml
listen: {port: 7411}
levels: [rack]
queues:
  lab:
    guarantee: {gpus: 16}
    limit: {gpus: 32}
    queues:
      vision: {guarantee: 8, weight: 2}
      language: {guarantee: 8, user_limit: 4}
  default: {max_jobs_per_user: 100}
```
"""
_TOPOLOGY = """The first of `nodes`, `slurm` and `labels` that names a node applies."""
_JOBS = """A queue may set its own `priority_ceiling` and `grace_max`; then the strictest on its path applies to all
users. Only an administrator of the cluster can set more than a queue above allows."""
_HEALTH = """What each signal means, and what to do, is in [health](operate/health.md)."""
_QUEUE = """Also the body of `PUT /v1/queues/{name}`. Amounts: a number of GPUs, or a mapping such as
`{gpus: 8, gpus:H100: 4, cpus: 64, memory: 1TiB}`, where `gpus:H100` are GPUs of one model. What is not set is not
limited. The children of a queue are in its `queues`. A lead divides the guarantee of their own queue; only an
administrator of the cluster sets a guarantee where no queue above has one."""
