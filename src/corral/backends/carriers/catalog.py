"""Which carriers there are, by the word that follows ``--on``. Knows where each is, and loads none before it is used.

A carrier is a module with `Settings` (a frozen Struct: what a fleet may say about it, with defaults; every fault of
what was said is told by its decoding or by ``fault()``) and ``opened(settings, cluster) -> Carrier``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec
from msgspec import structs

from corral.backends.carriers.base import Carrier

KINDS: dict[str, str] = {
    "command": "corral.backends.carriers.command",
    "ray": "corral.backends.carriers.ray",
    "slurm": "corral.backends.carriers.slurm",
    "ssh": "corral.backends.carriers.ssh",
}


class BadSettings(ValueError):
    """What is wrong with what was said about a carrier. ``field``: where."""

    def __init__(self, what: str, field: str = "") -> None:
        super().__init__(what)
        self.field = field


class CarrierSettings(Protocol):
    def fault(self) -> str:
        """What is wrong with them although each by itself is sound; empty: nothing."""
        ...


class Kind(Protocol):
    """A module of a carrier."""

    Settings: type[Any]
    #: settings that operators may choose: they name no program, no file or place of the server's, and nobody to trust.
    #: All others are for administrators.
    PLAIN: frozenset[str]
    #: ``cluster``: a word that no other server on the same engine has, to tell our pilots from theirs
    opened: Callable[[Any, str], Carrier]

    def missing(self, settings: Any = None) -> str:
        """What this machine lacks to use it, like this if settings are given, and how to get it; empty: nothing.
        Imports nothing that may be absent."""
        ...


def kind_of(name: str, kinds: Mapping[str, str] | None = None) -> Kind:
    known = KINDS if kinds is None else kinds
    if name not in known:
        raise BadSettings(f"there is no carrier {name[:40]!r}; there are {', '.join(sorted(known)) or 'none'}", "on")
    module: Any = importlib.import_module(known[name])
    return module  # type: ignore[no-any-return]


def not_plain(kind: Kind, settings: Any, before: Any) -> list[str]:
    """Names of settings that only administrators choose, and that differ from those of before; None: there were none,
    and what counts is what is not a default."""
    fields = (each for each in structs.fields(kind.Settings) if each.name not in kind.PLAIN)
    return [
        each.name
        for each in fields
        if getattr(settings, each.name) != (_default(each) if before is None else getattr(before, each.name))
    ]


def _default(of: structs.FieldInfo) -> Any:
    return of.default_factory() if of.default is msgspec.NODEFAULT and callable(of.default_factory) else of.default


def read_settings(kind: Kind, said: Mapping[str, Any]) -> Any:
    """The settings of a carrier; raises `BadSettings`."""
    try:
        settings = msgspec.convert(said, kind.Settings, strict=True)
    except msgspec.ValidationError as wrong:
        raise BadSettings(f"settings: {wrong}", "settings") from None
    fault = settings.fault()
    if fault:
        raise BadSettings(f"settings: {fault}", "settings")
    return settings
