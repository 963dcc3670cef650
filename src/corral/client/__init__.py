"""Corral from Python: ``Client`` and ``AsyncClient``, their errors, and ``training`` for scripts that run as jobs.

Names are imported when first used: a training script imports only the standard library, and the synchronous client
does not import what the asynchronous one needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from corral.client.asynchronous import AsyncClient
    from corral.client.blocking import Client
    from corral.client.credentials import Credentials
    from corral.client.errors import BadCredentials, ClientError, NotFound, Problem, Timeout, Unreachable
    from corral.client.follow import LogBytes

__all__ = [
    "AsyncClient",
    "BadCredentials",
    "Client",
    "ClientError",
    "Credentials",
    "LogBytes",
    "NotFound",
    "Problem",
    "Timeout",
    "Unreachable",
]

_HOME = {
    "AsyncClient": "asynchronous",
    "BadCredentials": "errors",
    "Client": "blocking",
    "ClientError": "errors",
    "Credentials": "credentials",
    "LogBytes": "follow",
    "NotFound": "errors",
    "Problem": "errors",
    "Timeout": "errors",
    "Unreachable": "errors",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
