"""What a shell offers for job ids, queues, nodes and users: asked from the server, quick, and silent when it is away.

Knows which parameters mean what. Loaded only when a shell completes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import rich_click as click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from corral.client.blocking import Client

_ANSWER_S = 1.0
_JOBS_MAX = 200
_ALIVE = ("waiting", "starting", "running", "stopping")

Source = Callable[["Client"], Iterable[tuple[str, str]]]


def _jobs(client: Client) -> Iterable[tuple[str, str]]:
    found = client.jobs(user=client.whoami().user, states=_ALIVE, limit=_JOBS_MAX)
    return ((job.id, f"{job.name or '-'} {job.state}") for job in found)


def _queues(client: Client) -> Iterable[tuple[str, str]]:
    return ((queue.name, "") for queue in client.queues().queues if queue.name)


def _nodes(client: Client) -> Iterable[tuple[str, str]]:
    return ((node.name, "drained" if node.drained else str(node.health)) for node in client.nodes().nodes)


def _users(client: Client) -> Iterable[tuple[str, str]]:
    return ((user.name, "") for user in client.users().users)


#: By the name of a parameter, in any command.
_BY_PARAMETER: dict[str, Source] = {"job": _jobs, "jobs": _jobs, "words": _jobs, "queue": _queues, "user": _users}
#: The argument ``name`` of the commands of a group.
_BY_GROUP: dict[str, Source] = {"queue": _queues, "node": _nodes, "user": _users}
_OF_FILES = ("submit", "run")  # their words are files


def offer_values(command: click.Command, group: str = "") -> None:
    """Let the parameters of a command, and of those below it, offer values."""
    for below in getattr(command, "commands", {}).values():
        offer_values(below, command.name or "")
    for parameter in command.params:
        name = parameter.name or ""
        source = _BY_GROUP.get(group) if name == "name" else _BY_PARAMETER.get(name)
        if source is not None and not (name == "words" and command.name in _OF_FILES):
            setattr(parameter, "shell_complete", _offer(source))  # noqa: B010 - of this parameter, not of its class


def _offer(source: Source) -> Callable[[click.Context, str], list[CompletionItem]]:
    def offered(_ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from corral.client.blocking import Client
        from corral.client.errors import ClientError

        try:
            with Client(patience_s=0, answer_s=_ANSWER_S) as client:
                found = [CompletionItem(name, help=about) for name, about in source(client)]
                return [each for each in found if each.value.startswith(incomplete)]
        except (ClientError, OSError):
            return []  # a shell that completes shows no errors

    return offered
