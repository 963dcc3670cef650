"""The identity of a data folder: its id, and whether the folder is a copy of another one.

A copy would continue with the numbers and epochs of its original, and agents could not tell the two apart. The file
contains its own inode number, which differs in a copy. (A snapshot of a whole file system keeps inodes and is not
detected.) Knows one file.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from msgspec import Struct

from corral.io.files import Replacement, make_folder

FILE_NAME = "server-id"


class Identity(Struct, frozen=True):
    """``is_copy``: the folder had the id of another one until now; it now has its own."""

    id: str
    is_copy: bool


def claim_identity(folder: Path) -> Identity:
    """The id of this folder; a new one if there is none, or if the file belongs to another folder."""
    path = folder / FILE_NAME
    try:
        stated, inode = path.read_text("ascii", "replace").split(), path.stat().st_ino
    except FileNotFoundError:
        return Identity(_written(path, uuid.uuid4().hex), False)
    if len(stated) == 2 and stated[1] == str(inode):
        return Identity(stated[0], False)
    if len(stated) == 1:  # written by a version without the inode
        return Identity(_written(path, stated[0]), False)
    return Identity(_written(path, uuid.uuid4().hex), True)


def _written(path: Path, id: str) -> str:
    make_folder(path.parent)
    with Replacement(path) as file:
        os.write(file, f"{id} {os.fstat(file).st_ino}\n".encode())
    return id
