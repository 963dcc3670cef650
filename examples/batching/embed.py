"""A handler for a batching queue: a list of texts in, a list of vectors out.

The vectors are made of hashes, so that the example runs anywhere. With a real model, load it at the top of the module:
a worker imports the module once, before its first batch.
"""

from __future__ import annotations

import hashlib

SIZE = 8


def embed(texts: list[str]) -> list[list[float]]:
    """One vector per text. An exception in the list instead of a vector fails that item alone."""
    return [[byte / 255 for byte in hashlib.sha256(text.encode()).digest()[:SIZE]] for text in texts]
