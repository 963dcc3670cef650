"""Small files for the readers' tests, and the folder of public traces where there is one."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from tests.architecture.repository import ROOT

_GIVEN = os.environ.get("CORRAL_TRACES")
PUBLIC = Path(_GIVEN) if _GIVEN else ROOT.parent / "shared" / "traces"

needs_public_traces = pytest.mark.skipif(
    not PUBLIC.is_dir(), reason=f"the public traces are not at {PUBLIC.name}/; set CORRAL_TRACES to their folder"
)


def written(folder: Path, name: str, *lines: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{line}\n" for line in lines)
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path
