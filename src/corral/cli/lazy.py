"""A group of commands whose modules are imported when they are used.

Knows names and the modules of their commands. The module of a command declares options and is light; it imports what it
needs to run inside its function.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import rich_click as click

from corral.cli.errors import meant

_LIST_OPTIONS = ("--json", "--fields")
_COMPLETION = "_CORRAL_COMPLETE"  # set by a shell that completes


class Noun(click.RichGroup):
    """A group that answers an unknown command with the nearest known one. Without a command it runs ``list``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "list" in self.commands and (not args or args[0].partition("=")[0] in _LIST_OPTIONS):
            args = ["list", *args]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in self.list_commands(ctx):
            raise meant(ctx.command_path, args[0], self.list_commands(ctx))
        return super().resolve_command(ctx, args)


class LazyGroup(Noun):
    """``lazy``: ``module:attribute`` of each command."""

    def __init__(self, *args: Any, lazy: Mapping[str, str], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in self._lazy:
            return None
        module, _, attribute = self._lazy[cmd_name].partition(":")
        found = getattr(import_module(module), attribute)
        assert isinstance(found, click.Command)
        if _COMPLETION in os.environ:
            from corral.cli.completion_values import offer_values

            offer_values(found)
        return found
