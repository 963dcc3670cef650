"""``corral login`` and ``logout``: store the address of a server and a token for it, and give them up again."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from corral.cli.errors import Complaint
from corral.cli.render import print_line, print_note
from corral.cli.session import complaint_of

if TYPE_CHECKING:
    from corral.client.blocking import Client
    from corral.wire.api.accounts import SignedInView

_ID_TOKEN_BYTES_MAX = 64 << 10


@click.command()
@click.option(
    "--server", "urls", metavar="URL", multiple=True, required=True, help="URL of the server; may be repeated."
)
@click.option("--token", metavar="TOKEN", envvar="CORRAL_TOKEN", help="Token; you are asked for it if not given.")
@click.option("--provider", metavar="NAME", default="", help="Identity provider to sign in with, if there are several.")
@click.option(
    "--id-token-file",
    metavar="FILE",
    default="",
    help="Exchange the token in this file: of a CI system, of Kubernetes.",
)
@click.option(
    "--id-token-variable",
    metavar="NAME",
    default="",
    help="Exchange the token of a CI system in this environment variable.",
)
@click.option(
    "--ca", metavar="FILE", default="", envvar="CORRAL_CA", help="Private certificate authority of the server."
)
@click.option("--allow-plain-http", is_flag=True, help="Allow sending the token unencrypted to another machine.")
def login(
    urls: tuple[str, ...],
    token: str | None,
    provider: str,
    id_token_file: str,
    id_token_variable: str,
    ca: str,
    allow_plain_http: bool,
) -> None:
    """Sign in to a server, and store its URL and your token for all commands on this machine.

    If the server has an identity provider, you sign in with a browser on any device. Otherwise you are asked for a
    token.
    """
    from corral.client.blocking import Client
    from corral.client.credentials import save_credentials
    from corral.client.errors import ClientError

    url, ca = ",".join(each.rstrip("/") for each in urls), os.path.abspath(ca) if ca else ""
    made: SignedInView | None = None
    try:
        if not token:
            with Client(url, "", patience_s=0, ca=ca, allow_plain_http=allow_plain_http) as client:
                made = _signed_in(client, provider, _id_token(id_token_file, id_token_variable))
        token = made.token if made else token or click.prompt("token", hide_input=True, err=True)
        with Client(url, token, patience_s=0, ca=ca, allow_plain_http=allow_plain_http) as client:
            who = client.whoami()
    except ClientError as error:
        raise complaint_of(error) from None
    try:
        path = save_credentials(
            url,
            token,
            ca=ca,
            allow_plain_http=allow_plain_http,
            provider=made.provider if made else "",
            refresh_token=made.refresh_token if made else "",
            expires_ms=made.expires_ms if made else None,
        )
    except OSError as error:
        raise Complaint(f"cannot store the credentials: {error}", "is your home folder writable?") from None
    print_line(f"logged in to {url} as {who.user}; credentials are in {path}")


def _id_token(file: str, variable: str) -> str:
    """The token of a program, from where the options say; empty: a person signs in."""
    if variable:
        if not os.environ.get(variable):
            raise Complaint(f"{variable} is not set", "does the CI job request an ID token for this variable?")
        return os.environ[variable].strip()
    if not file:
        return ""
    try:
        with Path(file).open() as source:
            return source.read(_ID_TOKEN_BYTES_MAX).strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", "") or "it is not text"
        raise Complaint(f"cannot read the token in {file}: {why}", "check the path and its permissions") from None


def _signed_in(client: Client, provider: str, id_token: str) -> SignedInView | None:
    """The result of a sign-in; None: the server has no identity provider."""
    if id_token:
        return client.exchange_token(id_token)
    if not client.ways_to_sign_in().providers:
        if provider:
            raise Complaint(f"the server has no identity provider {provider}", "sign in with a token: --token")
        return None
    flow = client.begin_sign_in(provider)
    print_note(f"Open {flow.whole_page or flow.page}")
    print_note(f"and enter the code {flow.code}" if not flow.whole_page else f"and confirm the code {flow.code}")
    until_s = time.monotonic() + flow.expires_in_ms / 1000
    while time.monotonic() < until_s:
        time.sleep(min(flow.interval_ms / 1000, 60.0))
        found = client.sign_in_result(flow.id).signed_in
        if found is not None:
            return found
    raise Complaint("you did not sign in in time", "run corral login again")


@click.command()
def logout() -> None:
    """Revoke the stored token and remove it from this machine."""
    from corral.client.blocking import Client
    from corral.client.credentials import credentials_path, read_credentials
    from corral.client.errors import ClientError

    path = credentials_path()
    kept = read_credentials(path)
    if kept is None:
        raise Complaint(f"you are not logged in: there is no {path}", "log in with: corral login")
    try:
        with Client(kept.url, kept.token, ca=kept.ca, allow_plain_http=kept.allow_plain_http, patience_s=0) as client:
            client.sign_out(kept.provider, kept.refresh_token)
        revoked = "the token is revoked"
    except ClientError as error:
        revoked = f"the server did not revoke the token: {error}"
    path.unlink(missing_ok=True)
    print_line(f"logged out of {kept.url}; {revoked}")
