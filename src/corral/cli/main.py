"""The command ``corral``: its subcommands, and how every command ends.

Exit codes are in ``errors``. Imports only what the command needs.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from typing import NoReturn

import rich_click as click

from corral import __version__
from corral.cli.errors import FAULT, INTERRUPTED, Complaint, likely_options
from corral.cli.lazy import LazyGroup
from corral.cli.render import print_note

DEBUG_VARIABLE = "CORRAL_DEBUG"
_OF_CLICK = (
    (r"is not a valid integer( range)?", "is not a whole number"),
    (r"is not a valid float( range)?", "is not a number"),
    (r"is not in the range x>=(\S+)", r"is less than \1"),
    (r"is not in the range (\S+)<=x<=(\S+)", r"is not between \1 and \2"),
    (r"^Missing (argument|option) '(?:-- )?(.*)'", r"the \1 \2 is missing"),
    (r"^Option '(\S+)' requires an argument", r"the option \1 needs a value"),
    (r"^Invalid value for '([^']*)'(?: / '[^']*')*", r"\1"),
    (r"Got unexpected extra arguments? \((.*)\)", r"unexpected arguments: \1"),
)
NOUNS = {
    "up": "corral.cli.serve.up:up",
    "down": "corral.cli.serve.down:down",
    "submit": "corral.cli.jobs.submit:submit",
    "run": "corral.cli.jobs.run:run",
    "step": "corral.cli.steps.step:step",
    "exec": "corral.cli.steps.in_job:execute",
    "shell": "corral.cli.steps.in_job:shell",
    "attach": "corral.cli.steps.reattach:reattach",
    "port": "corral.cli.steps.port:port",
    "cp": "corral.cli.steps.copy:copy",
    "notebook": "corral.cli.steps.notebook:notebook",
    "ssh-config": "corral.cli.steps.ssh_entry:ssh_config",
    "ssh-proxy": "corral.cli.steps.ssh_entry:ssh_proxy",
    "slurm": "corral.cli.slurm.install:slurm",
    "ps": "corral.cli.jobs.ps:ps",
    "show": "corral.cli.jobs.show:show",
    "top": "corral.cli.jobs.top:top",
    "why": "corral.cli.jobs.why:why",
    "logs": "corral.cli.jobs.logs:logs",
    "wait": "corral.cli.jobs.wait:wait",
    "cancel": "corral.cli.jobs.change:cancel",
    "hold": "corral.cli.jobs.change:hold",
    "release": "corral.cli.jobs.change:release",
    "requeue": "corral.cli.jobs.change:requeue",
    "priority": "corral.cli.jobs.change:priority",
    "checkpoint": "corral.cli.training.checkpoint:checkpoint",
    "batch": "corral.cli.batch.batch:batch",
    "intake": "corral.cli.intake.intake:intake",
    "goodput": "corral.cli.training.goodput:goodput",
    "queue": "corral.cli.cluster.queue:queue",
    "node": "corral.cli.cluster.node:node",
    "map": "corral.cli.cluster.map:show_map",
    "fleet": "corral.cli.fleet.fleet:fleet",
    "agent": "corral.cli.fleet.agent:agent",
    "pilot": "corral.cli.fleet.pilot:pilot",
    "testbed": "corral.cli.fleet.testbed:testbed",
    "events": "corral.cli.cluster.events:events",
    "usage": "corral.cli.cluster.usage:usage",
    "user": "corral.cli.accounts.user:user",
    "token": "corral.cli.accounts.token:token",
    "secret": "corral.cli.accounts.secret:secret",
    "template": "corral.cli.accounts.template:template",
    "open": "corral.cli.cluster.open:open_dashboard",
    "login": "corral.cli.accounts.login:login",
    "logout": "corral.cli.accounts.login:logout",
    "whoami": "corral.cli.accounts.whoami:whoami",
    "doctor": "corral.cli.serve.doctor:doctor",
    "db": "corral.cli.serve.db:db",
    "config": "corral.cli.serve.config:config",
    "kubernetes": "corral.cli.serve.kubernetes_commands:kubernetes",
    "sim": "corral.cli.sim.group:sim",
    "completion": "corral.cli.completion:completion",
    "version": "corral.cli.version:version",
}


@click.group(
    cls=LazyGroup,
    lazy=NOUNS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.command_panel("Jobs", commands=["submit", "run", "batch", "ps", "show", "top", "why", "logs", "wait"])
@click.command_panel("Training", commands=["checkpoint", "goodput"])
@click.command_panel(
    "Inside jobs", commands=["step", "exec", "shell", "attach", "port", "cp", "notebook", "ssh-config"]
)
@click.command_panel("Change jobs", commands=["cancel", "hold", "release", "requeue", "priority"])
@click.command_panel("Cluster", commands=["open", "queue", "node", "map", "fleet", "events", "usage"])
@click.command_panel("People", commands=["login", "logout", "user", "token", "secret", "template", "whoami"])
@click.command_panel("Server", commands=["up", "down", "intake", "doctor", "db", "config", "kubernetes"])
@click.command_panel("Other", commands=["sim", "slurm", "testbed", "agent", "pilot", "completion", "version"])
@click.version_option(__version__, "-V", "--version", prog_name="corral", message="%(prog)s %(version)s")
def corral() -> None:
    """A scheduler for machine-learning work on shared GPUs."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit with its exit code."""
    sys.exit(_run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    try:
        code = corral.main(args=arguments, prog_name="corral", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.ClickException as error:
        return _print_error(error, sys.argv[1:] if arguments is None else arguments)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return INTERRUPTED
    except BrokenPipeError:
        # the reader closed the pipe; the interpreter must not write at exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if os.environ.get(DEBUG_VARIABLE):
            raise
        what = f"{type(error).__name__}: {error}"
        hint = f"internal error; set {DEBUG_VARIABLE}=1 for the traceback"
        return _print_error(Complaint(what, hint, exit_code=FAULT))


def _print_error(error: click.ClickException, typed: Sequence[str] = ()) -> int:
    """Print what is wrong, and below it what to do."""
    if hasattr(error, "show_faults"):
        error.show_faults()  # one line each, above the summary
    if isinstance(error, click.NoSuchOption):
        message = _no_such_option(error)
    else:
        message = _plain(error.format_message().rstrip("."))
    hint = error.hint if isinstance(error, Complaint) else _usage_hint(error, typed)
    print_note(f"error: {message}")
    if hint:
        print_note(f"  hint: {hint}")
    return error.code if isinstance(error, Complaint) else error.exit_code


def _no_such_option(error: click.NoSuchOption) -> str:
    known = [] if error.ctx is None else [name for each in error.ctx.command.params for name in each.opts]
    likely = likely_options(error.option_name, error.possibilities or (), known)
    return f"there is no option {error.option_name}" + (f" (did you mean {', '.join(likely)}?)" if likely else "")


def _plain(message: str) -> str:
    """What click says about numbers, in plain words."""
    for pattern, words in _OF_CLICK:
        message = re.sub(pattern, words, message)
    return message


def _usage_hint(error: click.ClickException, typed: Sequence[str]) -> str:
    context = getattr(error, "ctx", None)
    if context is None:
        words = ["corral", *(word for word in typed[:1] if word in NOUNS)]
        return f"see: {' '.join(words)} --help" if isinstance(error, click.UsageError) else ""
    if isinstance(error, click.NoSuchOption) and context.info_name in ("submit", "run"):
        path = context.command_path
        return f"options of your program stand after --: {path} -- python train.py --lr 0.1; see: {path} --help"
    return f"see: {context.command_path} --help"
