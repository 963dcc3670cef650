"""The variables that show a task its own GPUs. Light to import: the supervisor of every task needs it.

The UUIDs of simulated GPUs start with ``SIM-``, those of AMD's with ``AMD-``.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

SIMULATED, AMD = "SIM-", "AMD-"


def is_simulated(uuid: str) -> bool:
    return uuid.startswith(SIMULATED)


def visibility(uuids: Sequence[str]) -> dict[str, str]:
    """The variables by which a task sees its own GPUs and no others. Without GPUs it sees none."""
    amd_ids = [uuid.removeprefix(AMD) for uuid in uuids if uuid.startswith(AMD)]
    env = {"CUDA_VISIBLE_DEVICES": ",".join(uuid for uuid in uuids if not uuid.startswith(AMD))}
    if amd_ids:
        env["ROCR_VISIBLE_DEVICES"] = ",".join(amd_ids)
    if any(map(is_simulated, uuids)):
        env["CORRAL_SIMULATED_GPUS"] = "1"
    return env
