"""The providers, by the word that follows ``--on``. Knows their modules, and imports none before it is used.

A provider is a module with `Settings` (a frozen Struct with defaults; decoding it or ``fault()`` reports every invalid
value) and ``opened(settings, cluster) -> Provider``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec
from msgspec import structs

from corral.providers.base import Provider

KINDS: dict[str, str] = {
    "command": "corral.providers.command",
    "ray": "corral.providers.ray",
    "slurm": "corral.providers.slurm",
    "ssh": "corral.providers.ssh",
}


class BadSettings(ValueError):
    """What is wrong with the settings of a provider. ``field``: where."""

    def __init__(self, what: str, field: str = "") -> None:
        super().__init__(what)
        self.field = field


class ProviderSettings(Protocol):
    def fault(self) -> str:
        """What is wrong with the combination of settings, each of which is valid by itself. Empty: nothing."""


class ProviderKind(Protocol):
    """A module of a provider."""

    Settings: type[Any]
    #: Settings that operators may choose: they name no program, no file or directory of the server, and nothing to
    #: trust. All others are for administrators.
    PLAIN: frozenset[str]
    #: ``cluster``: a word that no other server on the same provider has, to distinguish our pilots from theirs.
    opened: Callable[[Any, str], Provider]

    def missing(self, settings: Any = None) -> str:
        """What this machine lacks to use the provider (with these settings, if given), and how to get it. Empty:
        nothing. Imports nothing that may be absent."""


def kind_of(name: str, kinds: Mapping[str, str] | None = None) -> ProviderKind:
    known = KINDS if kinds is None else kinds
    if name not in known:
        raise BadSettings(f"unknown provider {name[:40]!r}: use one of {', '.join(sorted(known)) or '(none)'}", "on")
    module: Any = importlib.import_module(known[name])
    return module  # type: ignore[no-any-return]


def not_plain(kind: ProviderKind, settings: Any, before: Any) -> list[str]:
    """Names of settings that only administrators may choose and that differ from ``before`` (None: the defaults)."""
    fields = (each for each in structs.fields(kind.Settings) if each.name not in kind.PLAIN)
    return [
        each.name
        for each in fields
        if getattr(settings, each.name) != (_default(each) if before is None else getattr(before, each.name))
    ]


def _default(of: structs.FieldInfo) -> Any:
    return of.default_factory() if of.default is msgspec.NODEFAULT and callable(of.default_factory) else of.default


def read_settings(kind: ProviderKind, given: Mapping[str, Any]) -> Any:
    """The settings of a provider. Raises `BadSettings`."""
    try:
        settings = msgspec.convert(given, kind.Settings, strict=True)
    except msgspec.ValidationError as wrong:
        raise BadSettings(f"settings: {wrong}", "settings") from None
    fault = settings.fault()
    if fault:
        raise BadSettings(f"settings: {fault}", "settings")
    return settings
