"""``corral intake dead``: messages that were refused, with the reason; try them again, or drop them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import rich_click as click

from corral.cli.errors import FAULT, NOT_FOUND, UNREACHABLE, Complaint
from corral.cli.intake.broker_options import broker_options, broker_url
from corral.cli.lazy import Noun
from corral.cli.render import Field, Listing, clock, print_line, print_note
from corral.cli.session import complaint_of

if TYPE_CHECKING:
    from corral.integrations.broker import DeadLetter, Judge

MOST = 10_000
DEAD_LETTERS: Listing[DeadLetter] = Listing(
    {
        "id": Field(lambda each: each.id, title="MESSAGE"),
        "at_ms": Field(lambda each: clock(each.at_ms) if each.at_ms else "-", title="REFUSED"),
        "user": Field(lambda each: each.user or "(token)" if each.token or each.user else "-"),
        "batch": Field(lambda each: each.batch or "-"),
        "size": Field(lambda each: str(each.size), right=True, value=lambda each: each.size),
        "code": Field(lambda each: each.problem.code),
        "why": Field(lambda each: each.problem.detail, shrinks=True),
    },
    ("id", "at_ms", "user", "size", "code", "why"),
)


@click.group(cls=Noun)
def dead() -> None:
    """Messages that were refused, each with the reason that the API would have given."""


@dead.command("list")
@broker_options
@click.option("--limit", type=click.IntRange(1, MOST), default=1000, show_default=True, metavar="N", help="At most N.")
@DEAD_LETTERS.options
def list_dead(url: str, password_file: str, limit: int, fields: str | None, as_json: bool) -> None:
    """List the oldest dead letters. Tokens in them are not shown."""
    found: list[DeadLetter] = []

    async def keep(letter: DeadLetter) -> bool:
        found.append(letter)
        return False

    _sift(broker_url(url, password_file), keep, limit)
    DEAD_LETTERS.write([_without_token(each) for each in found], fields, as_json, empty="no dead letters")


def _without_token(letter: DeadLetter) -> DeadLetter:
    from msgspec.structs import replace

    return replace(letter, token="(hidden)" if letter.token else "")


def _named(action: str) -> Callable[[tuple[str, ...], bool], None]:
    def check(ids: tuple[str, ...], is_all: bool) -> None:
        if bool(ids) == is_all:
            raise Complaint(f"name the messages to {action}, or give --all", "see them with: corral intake dead list")

    return check


@dead.command()
@click.argument("ids", nargs=-1, metavar="[MESSAGE]...")
@click.option("--all", "is_all", is_flag=True, help="All dead letters.")
@broker_options
def retry(ids: tuple[str, ...], is_all: bool, url: str, password_file: str) -> int:
    """Hand dead letters to the server again, each as its own user. Those that are refused again stay."""
    _named("retry")(ids, is_all)
    from corral.client.blocking import Client
    from corral.client.errors import ClientError
    from corral.wire.api.broker_intake import IntakeMessage

    refused: list[str] = []
    done: list[str] = []

    async def again(letter: DeadLetter) -> bool:
        if not (is_all or letter.id in ids):
            return False
        if letter.is_cut:
            refused.append(letter.id)
            print_note(f"{letter.id}: not kept as it was sent ({letter.problem.detail}); publish it again, corrected")
            return False
        message = IntakeMessage(
            id=letter.id, body=letter.body, token=letter.token, user=letter.user, batch=letter.batch
        )
        outcome = (await asyncio.to_thread(client.hand_over, [message])).outcomes[0]
        if outcome.problem is not None:
            refused.append(letter.id)
            print_note(f"{letter.id}: refused again: {outcome.problem.detail or outcome.problem.code}")
            return False
        done.append(letter.id)
        what = f"job {', '.join(outcome.jobs)}" if outcome.jobs else f"{len(outcome.items)} items"
        print_line(f"{letter.id}: {what}")
        return True

    address = broker_url(url, password_file)
    try:
        with Client() as client:
            _sift(address, again, MOST)
    except ClientError as error:
        raise complaint_of(error) from None
    _check_found(ids, [*done, *refused])
    return FAULT if refused else 0


@dead.command()
@click.argument("ids", nargs=-1, metavar="[MESSAGE]...")
@click.option("--all", "is_all", is_flag=True, help="All dead letters.")
@broker_options
def drop(ids: tuple[str, ...], is_all: bool, url: str, password_file: str) -> None:
    """Remove dead letters for good."""
    _named("drop")(ids, is_all)
    done: list[str] = []

    async def chosen(letter: DeadLetter) -> bool:
        if is_all or letter.id in ids:
            done.append(letter.id)
            return True
        return False

    _sift(broker_url(url, password_file), chosen, MOST)
    _check_found(ids, done)
    print_line(f"dropped {len(done)}")


def _check_found(ids: tuple[str, ...], found: list[str]) -> None:
    unknown = [each for each in ids if each not in found]
    if unknown:
        raise Complaint(
            f"there is no dead letter {unknown[0]!r}", "see them with: corral intake dead list", exit_code=NOT_FOUND
        )


def _sift(url: str, judge: Judge, most: int) -> None:
    from corral.integrations.broker import BrokerLost
    from corral.integrations.broker_kinds import dead_letters_of
    from corral.wire.brokers.broker_names import shown_broker

    async def run() -> None:
        async with dead_letters_of(url) as letters:
            await letters.sift(judge, most)

    try:
        asyncio.run(run())
    except BrokerLost as lost:
        what = f"the broker at {shown_broker(url)} cannot be used: {lost}"
        raise Complaint(what, "check its address, user and password", exit_code=UNREACHABLE) from None
