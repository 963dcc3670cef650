"""Addresses of databases: which is one, and what of it people may see.

Knows texts. A password in an address is for the database alone.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit, urlunsplit

_SCHEMES = ("postgresql://", "postgres://")
_SECRET = re.compile(r"(?<![a-z])(password|passfile|sslpassword)=[^&]*", re.IGNORECASE)


def is_postgres(place: str) -> bool:
    return place.startswith(_SCHEMES)


def shown(address: str) -> str:
    """An address as people may see it: without any password."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return "postgresql://..."
    where = parts.netloc.rpartition("@")
    user = where[0].partition(":")[0]
    return urlunsplit(parts._replace(netloc=f"{user}{where[1]}{where[2]}", query=_SECRET.sub(r"\1=...", parts.query)))
