"""From a configuration to the runtime of tasks on one machine, for a server or an agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from corral.runtime.container.settings import ContainerSettings
    from corral.runtime.local.settings import LocalSettings
    from corral.wire.config import Config


def local_settings(config: Config) -> LocalSettings:
    from corral.client.credentials import credentials_path
    from corral.runtime.local.settings import LocalSettings

    logs = config.logs
    return LocalSettings(
        account=config.accounts.default,
        hidden=(str(credentials_path()),),
        log_keep_ms=logs.keep_ms,
        log_total_mib=logs.total_mib,
        log_user_mib=logs.user_mib or 0,
        log_task_mib=max(1, logs.task_mib // 2),
        scratch_mib_max=logs.scratch_mib or 0,
        failure_rules=tuple((rule.says, rule.exit_code, rule.failure, rule.why) for rule in config.failures),
    )


def container_settings(config: Config) -> ContainerSettings:
    from corral.runtime.container.settings import ContainerSettings

    rules = config.containers
    return ContainerSettings(
        socket=rules.socket,
        pull=rules.pull,
        mounts=rules.mounts,
        network=rules.network,
        shm_mib=rules.shm_mib or 0,
        cdi_kind=rules.cdi_kind,
    )
