"""The reference of the command line, made from the commands themselves: every command, its options, the exit codes.

Knows how click describes commands. ``docs/cli.md`` is its text; a test says when that is no longer so.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import rich_click as click

from corral.cli.complaint import EXIT_CODES
from corral.cli.jobs.options import JobCommand
from corral.cli.main import corral

FULL = "submit"  # of the commands that take all keys of a job, the one that lists them

HEAD = """# The command line

Made from the commands; `make accept` writes it anew. `corral COMMAND --help` shows the same.

Every list takes `--json`, and `--fields` to pick columns. Standard output has what was asked for, standard error what
is said about it. `NO_COLOR` turns colour off. `CORRAL_URL`, `CORRAL_TOKEN` and `CORRAL_CA` say which server and who
asks; otherwise `$XDG_CONFIG_HOME/corral/credentials.json` does, which `corral up` and `corral login` write.
`CORRAL_DEBUG=1` shows where a fault of Corral's own happened. `eval "$(corral completion bash)"` completes commands and
options (zsh and fish: likewise).

## Exit codes

| code | meaning |
|---|---|
"""


def reference() -> str:
    lines = [f"| {code} | {meaning} |" for code, meaning in sorted(EXIT_CODES.items())]
    parts = [HEAD + "\n".join(lines), "`run` and `wait` leave with the exit code of the job: of its first failed task."]
    context = click.RichContext(corral, info_name="corral", **corral.context_settings)  # options of help are remembered
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
        text += f"\n\nEvery key of a job file is an option, as of `corral {FULL}`."
    rows = [row for parameter in parameters if (row := _row(parameter, context))]
    table = ["| option | meaning |", "|---|---|", *rows] if rows else []
    return "\n\n".join(filter(None, [f"## {context.command_path}", f"`{usage}`", _escaped(text), "\n".join(table)]))


def _row(parameter: click.Parameter, context: click.Context) -> str | None:
    if not isinstance(parameter, click.Option) or parameter.hidden or parameter.name == "help":
        return None
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    metavar = "" if parameter.is_flag else " `" + parameter.make_metavar(context).replace("|", "\\|") + "`"
    default = parameter.default
    shown = f" Default: `{default}`." if parameter.show_default and default is not None else ""
    environment = f" Or `{parameter.envvar}`." if parameter.show_envvar else ""
    return f"| {names}{metavar} | {_escaped(parameter.help or '')}{shown}{environment} |"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
