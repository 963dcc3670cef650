"""Addresses of machines as users and nodes write them. Looks nothing up."""

from __future__ import annotations

import ipaddress
import re
from contextlib import suppress

_PART = r"[A-Za-z0-9_][A-Za-z0-9_-]{0,62}"
_NAME = re.compile(rf"{_PART}(\.{_PART})*")
_CHARS_MAX = 253


def is_address(text: str) -> bool:
    """An IP address, or a name that may be looked up."""
    if len(text) > _CHARS_MAX:
        return False
    with suppress(ValueError):
        return bool(ipaddress.ip_address(text))
    return bool(_NAME.fullmatch(text))
