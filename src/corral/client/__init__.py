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
    from corral.client.errors import (
        BadCredentials,
        BatchItemFailed,
        ClientError,
        NotFound,
        Problem,
        Timeout,
        Unreachable,
    )
    from corral.client.follow import LogBytes
    from corral.client.handles.handle import AsyncJobHandle, AsyncSubmittedJob, JobHandle, SubmittedJob

__all__ = [
    "AsyncClient",
    "AsyncJobHandle",
    "AsyncSubmittedJob",
    "BadCredentials",
    "BatchItemFailed",
    "Client",
    "ClientError",
    "Credentials",
    "JobHandle",
    "LogBytes",
    "NotFound",
    "Problem",
    "SubmittedJob",
    "Timeout",
    "Unreachable",
]

_HOME = {
    "AsyncClient": "asynchronous",
    "AsyncJobHandle": "handles.handle",
    "AsyncSubmittedJob": "handles.handle",
    "BadCredentials": "errors",
    "BatchItemFailed": "errors",
    "Client": "blocking",
    "ClientError": "errors",
    "Credentials": "credentials",
    "JobHandle": "handles.handle",
    "LogBytes": "follow",
    "NotFound": "errors",
    "Problem": "errors",
    "SubmittedJob": "handles.handle",
    "Timeout": "errors",
    "Unreachable": "errors",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
