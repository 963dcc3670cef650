"""Addresses: which is a database, what of it may be shown; and which server is reached without encryption.

Knows texts. A password in an address is only for the database.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from urllib.parse import urlsplit, urlunsplit

#: Set to 1, it allows clients and agents to use plain HTTP to other machines.
PLAIN_HTTP_VARIABLE = "CORRAL_ALLOW_PLAIN_HTTP"
_SCHEMES = ("postgresql://", "postgres://")
_SECRET = re.compile(r"(?<![a-z])(password|passfile|sslpassword)=[^&]*", re.IGNORECASE)


def is_postgres(place: str) -> bool:
    return place.startswith(_SCHEMES)


def shown(address: str) -> str:
    """An address for display: without a password."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return "postgresql://..."
    where = parts.netloc.rpartition("@")
    user = where[0].partition(":")[0]
    return urlunsplit(parts._replace(netloc=f"{user}{where[1]}{where[2]}", query=_SECRET.sub(r"\1=...", parts.query)))


def is_plain(url: str) -> bool:
    """Whether a token would be sent unencrypted to another machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    if parts.scheme != "http" or host == "localhost":
        return False
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return True


def why_not_plain(url: str, environment: Mapping[str, str] | None = None) -> str:
    """Why no token may be sent there; empty: it may, or the environment allows it. Everything that sends tokens calls
    it: clients, the command line, agents."""
    env = os.environ if environment is None else environment
    if not is_plain(url) or env.get(PLAIN_HTTP_VARIABLE, "") in ("1", "true", "yes"):
        return ""
    return f"tokens would be sent unencrypted to {url}"


PLAIN_HINT = f"use https://, or give --allow-plain-http or {PLAIN_HTTP_VARIABLE}=1 if the network is trusted"
