"""Checkpoints of training runs that are complete or do not exist: written by every rank, resumed at any world size.

``corral_checkpoints`` in every job, ``corral.checkpoints`` where Corral is installed. Its modules import each other
relatively, need only the standard library and Python 3.9 (torch and obstore are imported when they are used), and
nothing of the rest of Corral: the same files run in the environment of the user. In a training script::

    saver = corral_checkpoints.Saver("/shared/checkpoints", keep_last=3)
    step = saver.restore(state)     # 0 at the first start
    saver.save(step, state)         # returns after a copy; the ranks write behind the next steps
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .run_store import RunStore
    from .storage import open_storage

__all__ = ["RunStore", "open_storage"]  # without Saver and TrainState, which need torch

_HOME = {"RunStore": "run_store", "Saver": "saver", "TrainState": "train_state", "open_storage": "storage"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
