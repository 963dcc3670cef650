"""From a configuration to how tasks are run on one machine: by a server on its own, by an agent on any other."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from corral.backends.container.settings import ContainerSettings
    from corral.backends.local.settings import LocalSettings
    from corral.wire.config import Config


def local_settings(config: Config) -> LocalSettings:
    from corral.backends.local.settings import LocalSettings
    from corral.client.credentials import credentials_path

    logs = config.logs
    return LocalSettings(
        account=config.accounts.default,
        hidden=(str(credentials_path()),),
        log_keep_ms=logs.keep_ms,
        log_total_mib=logs.total_mib,
        log_task_mib=max(1, logs.task_mib // 2),
        scratch_mib_max=logs.scratch_mib or 0,
    )


def container_settings(config: Config) -> ContainerSettings:
    from corral.backends.container.settings import ContainerSettings

    rules = config.containers
    return ContainerSettings(
        socket=rules.socket,
        pull=rules.pull,
        mounts=rules.mounts,
        network=rules.network,
        shm_mib=rules.shm_mib or 0,
        cdi_kind=rules.cdi_kind,
    )
