"""The reference of the command line, made from the commands themselves: every command, its options, the exit codes.

Knows how click describes commands. ``docs/cli.md`` is its text; a test fails when the page is out of date.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import rich_click as click

from corral.cli.errors import EXIT_CODES
from corral.cli.jobs.options import JobCommand
from corral.cli.main import corral

FULL = "submit"  # the command that lists the keys of a job, for all commands that take them

HEAD = """# The command line

Generated from the commands by `make accept`. `corral COMMAND --help` shows the same.

Every list takes `--json`, and `--fields` to pick columns. Results go to standard output, messages to standard error.
`NO_COLOR` turns colour off. `CORRAL_URL`, `CORRAL_TOKEN` and `CORRAL_CA` name the server, your token and a private
certificate authority; without them `$XDG_CONFIG_HOME/corral/credentials.json` is used, which `corral up` and
`corral login` write. `CORRAL_DEBUG=1` prints the traceback of an internal error.
`eval "$(corral completion bash)"` completes commands and options (zsh and fish alike).

## Exit codes

| code | meaning |
|---|---|
"""


def reference() -> str:
    lines = [f"| {code} | {meaning} |" for code, meaning in sorted(EXIT_CODES.items())]
    parts = [HEAD + "\n".join(lines), "`run` and `wait` exit with the exit code of the job's first failed task."]
    context = click.RichContext(corral, info_name="corral", **corral.context_settings)  # click caches the help options
    parts += list(_described(corral, context))
    return "\n\n".join(parts) + "\n"


def _described(command: click.Command, context: click.Context) -> Iterator[str]:
    if not isinstance(command, click.RichGroup):
        yield _one(command, context)
        return
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        assert below is not None, name
        yield from _described(below, click.RichContext(below, parent=context, info_name=name))


def _one(command: click.Command, context: click.Context) -> str:
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    parameters = command.get_params(context)
    text = inspect.cleandoc(command.help or "")
    if isinstance(command, JobCommand) and context.info_name != FULL:
        parameters = [each for each in parameters if each not in command.keys]
        text += f"\n\nEvery key of a job file is an option, as with `corral {FULL}`."
    rows = [row for parameter in parameters if (row := _row(parameter, context))]
    table = ["| option | meaning |", "|---|---|", *rows] if rows else []
    return "\n\n".join(filter(None, [f"## {context.command_path}", f"`{usage}`", _escaped(text), "\n".join(table)]))


def _row(parameter: click.Parameter, context: click.Context) -> str | None:
    if not isinstance(parameter, click.Option) or parameter.hidden or parameter.name == "help":
        return None
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    metavar = "" if parameter.is_flag else " `" + parameter.make_metavar(context).replace("|", "\\|") + "`"
    default = parameter.default
    if isinstance(default, tuple):  # of an option that may be given more than once
        default = ",".join(map(str, default)) or None
    shown = f" Default: `{default}`." if parameter.show_default and default is not None else ""
    environment = f" Or `{parameter.envvar}`." if parameter.show_envvar else ""
    return f"| {names}{metavar} | {_escaped(parameter.help or '')}{shown}{environment} |"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
