"""``corral user``: users and their roles."""

from __future__ import annotations

import pwd
from typing import TYPE_CHECKING

import rich_click as click

from corral.cli.lazy import Noun
from corral.cli.option_types import Word
from corral.cli.render import Field, Listing, print_line, print_note
from corral.cli.session import connected

if TYPE_CHECKING:
    from corral.wire.api.accounts import RoleView, UserView

ROLES = ("administrator", "operator", "lead", "member", "viewer")


def role_text(role: RoleView) -> str:
    return f"{role.role} of {role.queue}" if role.queue else role.role


USERS: Listing[UserView] = Listing(
    {
        "name": Field(lambda user: user.name, title="USER"),
        "roles": Field(lambda user: ", ".join(map(role_text, user.roles)) or "none", shrinks=True),
        "account": Field(lambda user: user.account or "-"),
        "tokens": Field(lambda user: str(user.tokens), right=True),
        "disabled": Field(lambda user: "disabled" if user.disabled else ""),
    },
    ("name", "roles", "account", "tokens", "disabled"),
)


@click.group(cls=Noun)
def user() -> None:
    """Users and their roles."""


@user.command("list")
@USERS.options
def list_users(fields: str | None, as_json: bool) -> None:
    """List the users you may see."""
    with connected() as client:
        found = client.users().users
    USERS.write(found, fields, as_json, empty="no users that you may see")


@user.command("set")
@click.argument("name")
@click.option("--account", metavar="ACCOUNT", help="Unix account that runs the jobs of the user.")
@click.option("--disable/--enable", "disabled", default=None, help="Disable or enable the user.")
def set_user(name: str, account: str | None, disabled: bool | None) -> None:
    """Create a user, or change the given settings of one."""
    from corral.client.errors import NotFound

    with connected() as client:
        try:
            client.user(name)
            verb = "changed"
        except NotFound:
            verb = "created"
        client.set_user(name, account=account, disabled=disabled)
    print_line(f"user {name} {verb}")
    if account and not _is_here(account):
        print_note(f"warning: this machine has no account {account!r}; jobs of {name} run only on nodes that have it")
    if verb == "created":
        print_note(f"  corral user grant {name} member QUEUE", dim=True)
        print_note(f"  corral token make --user {name}", dim=True)


def _is_here(account: str) -> bool:
    try:
        pwd.getpwnam(account)
    except KeyError:
        return False
    return True


@user.command()
@click.argument("name")
@click.argument("provider", default="")
def link(name: str, provider: str) -> None:
    """Let a user who was created here sign in with an identity provider.

    The person with that user name at the provider becomes this user at the next sign-in. Without PROVIDER the user can
    no longer sign in with one.
    """
    with connected() as client:
        client.link_user(name, provider)
    print_line(f"user {name} signs in with {provider}" if provider else f"user {name} signs in with tokens only")


@user.command()
@click.argument("name")
def remove(name: str) -> None:
    """Remove a user with all roles and tokens. The audit record keeps what they did."""
    with connected() as client:
        client.remove_user(name)
    print_line(f"user {name} removed")


@user.command()
@click.argument("name")
@click.argument("role", type=Word(*ROLES), metavar="ROLE")
@click.argument("queue", default="")
def grant(name: str, role: str, queue: str) -> None:
    """Grant a user a role in a queue and its children; without a queue, everywhere.

    Roles: administrator, operator, lead, member, viewer.
    """
    with connected() as client:
        client.grant(name, role, queue)
    print_line(f"{name} is now {role} of {queue or 'the cluster'}")


@user.command()
@click.argument("name")
@click.argument("role", type=Word(*ROLES), metavar="ROLE")
@click.argument("queue", default="")
def revoke(name: str, role: str, queue: str) -> None:
    """Revoke a role: administrator, operator, lead, member or viewer."""
    with connected() as client:
        client.revoke(name, role, queue)
    print_line(f"{name} is no longer {role} of {queue or 'the cluster'}")
