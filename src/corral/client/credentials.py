"""The server's address and the user's token: from the environment, or from a file that only its owner can read.

Knows both sources and their order. A token is sent only to the servers it was stored with, and to the leader that one
of them names.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from corral.client.errors import BadCredentials
from corral.io.files import write_file

URL_VARIABLE = "CORRAL_URL"
TOKEN_VARIABLE = "CORRAL_TOKEN"
CA_VARIABLE = "CORRAL_CA"
_EARLY_MS = 60_000  # a sign-in is renewed before it expires
_START = "start a server on this machine with corral up, which stores a token; for another server: corral login"


class Credentials(NamedTuple):
    """``source``: where they were found, for messages. ``ca``: a file with the certificate authority of the server;
    empty: those that this machine trusts. ``allow_plain_http``: allowed when they were stored. ``provider``,
    ``refresh_token``, ``expires_ms``: of a sign-in with an identity provider."""

    url: str
    token: str
    source: str
    ca: str = ""
    allow_plain_http: bool = False
    provider: str = ""
    refresh_token: str = ""
    expires_ms: int = 0  # 0: not known

    def __repr__(self) -> str:
        return f"Credentials(url={self.url!r}, source={self.source!r})"  # keeps the token out of logs


def find_credentials(environment: Mapping[str, str] | None = None) -> Credentials:
    """From CORRAL_URL, CORRAL_TOKEN and CORRAL_CA; from the file where a variable is not set."""
    env = os.environ if environment is None else environment
    url, token = env.get(URL_VARIABLE, "").rstrip("/"), env.get(TOKEN_VARIABLE, "")
    if url and token:
        return Credentials(url, token, "the environment", env.get(CA_VARIABLE, ""))
    kept = read_credentials(credentials_path(env))
    if kept is None:
        missing = " and ".join(name for name in (URL_VARIABLE, TOKEN_VARIABLE) if not env.get(name))
        raise BadCredentials(f"there are no credentials: {missing} not set, and no {credentials_path(env)}", _START)
    if url and url != kept.url:
        what = f"{URL_VARIABLE} is {url}, but the token in {credentials_path(env)} is for {kept.url}"
        raise BadCredentials(what, f"set {TOKEN_VARIABLE} as well, or unset {URL_VARIABLE}")
    return kept._replace(token=token or kept.token, ca=env.get(CA_VARIABLE) or kept.ca)


def credentials_path(environment: Mapping[str, str] | None = None) -> Path:
    env = os.environ if environment is None else environment
    base = env.get("XDG_CONFIG_HOME") or os.path.join(env.get("HOME") or os.path.expanduser("~"), ".config")
    return Path(base) / "corral" / "credentials.json"


def read_credentials(path: Path) -> Credentials | None:
    """The content of the file; None: there is no file. Refused if others can read the file."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            text = file.read(1 << 16)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadCredentials(f"{path} cannot be read: {error.strerror}", "it must be a file of yours") from None
    if mode & 0o077:
        what = f"{path} can be read by others (mode {mode:04o})"
        raise BadCredentials(
            what, f"chmod 600 {path}; if others may have read it, create a new token: corral token make"
        )
    try:
        stored = json.loads(text)
        where = str(stored["url"]).rstrip("/")
        token = str(stored["token"])
        ca = str(stored.get("ca", ""))
        provider = str(stored.get("provider", ""))
        refresh_token = str(stored.get("refresh_token", ""))
        expires_ms = int(stored.get("expires_ms", 0))
        is_plain = stored.get("allow_plain_http") is True
        return Credentials(where, token, str(path), ca, is_plain, provider, refresh_token, expires_ms)
    except (ValueError, KeyError, TypeError, AttributeError):
        what = f'{path} is invalid; expected: {{"url": ..., "token": ...}}'
        raise BadCredentials(what, "remove it and run corral up again, or write a token into it") from None


def save_credentials(
    url: str,
    token: str,
    path: Path | None = None,
    ca: str = "",
    *,
    allow_plain_http: bool = False,
    provider: str = "",
    refresh_token: str = "",
    expires_ms: int | None = None,
) -> Path:
    """Write them, readable by this user only. Atomic: readers see the old file or the new one."""
    target = credentials_path() if path is None else path
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    kept: dict[str, object] = {"url": url.rstrip("/"), "token": token}
    kept |= {"ca": ca} if ca else {}
    kept |= {"allow_plain_http": True} if allow_plain_http else {}
    kept |= {"provider": provider} if provider else {}
    kept |= {"refresh_token": refresh_token} if refresh_token else {}
    kept |= {"expires_ms": expires_ms} if provider and expires_ms else {}
    write_file(target, json.dumps(kept).encode() + b"\n")
    return target


def renewed(kept: Credentials) -> Credentials:
    """The credentials with a token that is valid, if the provider agrees; otherwise as they are, and the server says
    that the token has expired. Several commands at once renew it once: a refresh token may be valid for one use only.
    """
    if not _is_over(kept):
        return kept
    from corral.client.blocking import Client  # it needs the transport, which calls this
    from corral.client.errors import ClientError

    path = Path(kept.source)
    lock = os.open(path.with_suffix(".lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        now = read_credentials(path) or kept
        if not _is_over(now) or not now.refresh_token:
            return now
        with Client(now.url, "", ca=now.ca, allow_plain_http=now.allow_plain_http, patience_s=0) as client:
            made = client.refresh_sign_in(now.provider, now.refresh_token)
        save_credentials(
            now.url,
            made.token,
            path,
            now.ca,
            allow_plain_http=now.allow_plain_http,
            provider=made.provider,
            refresh_token=made.refresh_token,
            expires_ms=made.expires_ms,
        )
        return read_credentials(path) or now
    except (ClientError, OSError):
        return kept
    finally:
        os.close(lock)


def _is_over(kept: Credentials) -> bool:
    return bool(kept.expires_ms) and kept.expires_ms - _EARLY_MS <= time.time() * 1000
