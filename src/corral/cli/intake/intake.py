"""``corral intake``: take submissions from a broker, and look at those that were refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import rich_click as click

from corral.cli.intake.broker_options import broker_options, broker_url
from corral.cli.intake.dead import dead
from corral.cli.lazy import Noun
from corral.cli.render import Field, Listing
from corral.cli.session import connected

if TYPE_CHECKING:
    from corral.wire.api.broker_intake import IntakeView

INTAKES: Listing[IntakeView] = Listing(
    {
        "name": Field(lambda each: each.name, title="INTAKE"),
        "broker": Field(lambda each: each.broker),
        "waiting": Field(lambda each: str(each.waiting), right=True, value=lambda each: each.waiting),
        "dead": Field(lambda each: str(each.dead), right=True, value=lambda each: each.dead),
        "published": Field(lambda each: str(each.published), right=True, value=lambda each: each.published),
        "seen_s_ago": Field(lambda each: f"{each.seen_s_ago:.0f} s ago", title="SEEN", right=True),
        "paused": Field(lambda each: each.paused or "-"),
    },
    ("name", "broker", "waiting", "dead", "published", "seen_s_ago", "paused"),
)


@click.group(cls=Noun)
def intake() -> None:
    """Take submissions from a broker (RabbitMQ, Redis), where they wait while no server runs."""


intake.add_command(dead)


@intake.command("list")
@INTAKES.options
def list_intakes(fields: str | None, as_json: bool) -> None:
    """List the intakes that reported to the server lately."""
    with connected() as client:
        found = client.intakes().intakes
    INTAKES.write(found, fields, as_json, empty="no intake has reported in the last 10 minutes")


def _run_options(command: click.Command) -> click.Command:
    """What both brokers have in common."""
    for option in reversed(
        [
            click.Option(
                ["--prefetch"],
                type=click.IntRange(1, 10_000),
                default=500,
                show_default=True,
                metavar="N",
                help="Messages that the broker delivers before the first of them is durable.",
            ),
            click.Option(
                ["--no-events"], is_flag=True, help="Do not publish state changes; for all intakes of a broker but one."
            ),
            click.Option(["--name"], metavar="NAME", default="", help="Name in reports; default: host and process."),
            click.Option(["--attached"], is_flag=True, hidden=True),
        ]
    ):
        command.params.append(option)
    return command


@intake.command()
@broker_options
def rabbitmq(url: str, password_file: str, prefetch: int, no_events: bool, name: str, attached: bool) -> int:
    """Submit what arrives in RabbitMQ's queue corral.jobs; Ctrl-C stops it, and loses nothing.

    It needs a token of an administrator, in CORRAL_TOKEN or from corral login:
    corral token make intake --scope intake.submit,events.read,jobs.read
    """
    from corral.cli.intake.intake_process import run_intake

    return run_intake(
        broker_url(url, password_file, "rabbitmq"), prefetch, not no_events, name, ends_with_input=attached
    )


@intake.command()
@broker_options
def redis(url: str, password_file: str, prefetch: int, no_events: bool, name: str, attached: bool) -> int:
    """Submit what arrives in the Redis stream corral.jobs; Ctrl-C stops it, and loses nothing.

    It needs the same token as corral intake rabbitmq.
    """
    from corral.cli.intake.intake_process import run_intake

    return run_intake(broker_url(url, password_file, "redis"), prefetch, not no_events, name, ends_with_input=attached)


for each in (rabbitmq, redis):
    _run_options(each)
