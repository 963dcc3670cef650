"""Corral: a scheduler for machine-learning work on shared GPUs.

This package root names the release, and the few names that people import; those are loaded when they are asked for,
so that a light user of one of them (a training script, the command line) does not pay for the others.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from corral.client import training
    from corral.client.asynchronous import AsyncClient
    from corral.client.blocking import Client

__version__ = "0.1.0"

__all__ = ["AsyncClient", "Client", "training"]

_HOME = {"AsyncClient": "client.asynchronous", "Client": "client.blocking"}


def __getattr__(name: str) -> Any:
    if name == "training":
        return import_module("corral.client.training")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"corral.{_HOME[name]}"), name)
