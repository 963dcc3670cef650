"""What a job takes along from where it is submitted: the working directory.

Knows documents as mappings, not whether their values are valid. Pure: the caller's directory is an argument. Light to
import, because every client needs it.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any


def with_directory(document: Mapping[str, Any], here: str) -> dict[str, Any]:
    """A job runs in the directory of its submission; a relative directory is relative to that."""
    directory = document.get("directory", here)
    if isinstance(directory, str) and directory and directory[0] not in "/~":
        directory = posixpath.normpath(posixpath.join(here, directory))
    return {**document, "directory": directory}
