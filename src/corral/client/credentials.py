"""Where the server is and who asks: from the environment, or from a file that only its owner can read.

Knows two places and their order. A token is never sent to another server than those it was stored with, or the leader
that one of them names.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from corral.client.errors import BadCredentials

URL_VARIABLE, TOKEN_VARIABLE, CA_VARIABLE = "CORRAL_URL", "CORRAL_TOKEN", "CORRAL_CA"
_START = "corral up starts a server on this machine and keeps its token for you; for another one set both variables"


class Credentials(NamedTuple):
    """``source`` is where they were found, for messages. ``ca``: a file with the authority that vouches for the server;
    empty: those that this machine trusts. ``allow_plain_http``: whoever stored them allowed that."""

    url: str
    token: str
    source: str
    ca: str = ""
    allow_plain_http: bool = False

    def __repr__(self) -> str:
        return f"Credentials(url={self.url!r}, source={self.source!r})"  # a token has no business in a log


def find_credentials(environment: Mapping[str, str] | None = None) -> Credentials:
    """CORRAL_URL, CORRAL_TOKEN and CORRAL_CA, or what the file says of what they leave open."""
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
    """What the file says; None: there is no file. One that others can read is refused: it may be known already."""
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
        raise BadCredentials(what, f"chmod 600 {path}; if others may have read it, make a new token: corral token make")
    try:
        told = json.loads(text)
        where, token, ca = str(told["url"]).rstrip("/"), str(told["token"]), str(told.get("ca", ""))
        return Credentials(where, token, str(path), ca, told.get("allow_plain_http") is True)
    except (ValueError, KeyError, TypeError, AttributeError):
        what = f'{path} is not what it should be: {{"url": ..., "token": ...}}'
        raise BadCredentials(what, "remove it and run corral up again, or write a token into it") from None


def save_credentials(
    url: str, token: str, path: Path | None = None, ca: str = "", *, allow_plain_http: bool = False
) -> Path:
    """Write them for this user alone, all at once: whoever reads sees the old file or the new one."""
    target = credentials_path() if path is None else path
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    kept = {"url": url.rstrip("/"), "token": token} | ({"ca": ca} if ca else {})
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        json.dump(kept | ({"allow_plain_http": True} if allow_plain_http else {}), file)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    draft.replace(target)
    return target
