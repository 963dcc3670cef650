"""The modules that every task can import: files for its private directory, with no need to install anything.

Knows where their sources are in this package, and reads them when this process starts: an upgrade may replace them
later. A module is one file. `corral.checkpoints` is a package, so its file contains the sources of its modules.
"""

from __future__ import annotations

import os

TRAINING = "corral_training.py"
CHECKPOINTS = "corral_checkpoints.py"
BATCH = "corral_batch.py"
_LOADER = '''"""Checkpoints of training runs: the package ``corral.checkpoints`` in one file, for jobs."""

import importlib.abc
import importlib.util
import sys

SOURCES = {sources}


class _Modules(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Finds and loads the modules of this package in ``SOURCES``."""

    def find_spec(self, name, path=None, target=None):
        package, _, module = name.rpartition(".")
        if package == __name__ and module in SOURCES:
            return importlib.util.spec_from_loader(name, self, origin=__file__ + "/" + module + ".py")
        return None

    def get_source(self, name):
        return SOURCES[name.rpartition(".")[2]]

    def is_package(self, name):
        return False


sys.meta_path.append(_Modules())
__path__ = []
exec(compile(SOURCES["__init__"], __file__ + "/__init__.py", "exec", dont_inherit=True))
'''


def _read() -> dict[str, bytes]:
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    folder = f"{package}/checkpoints"
    names = sorted(name for name in os.listdir(folder) if name.endswith(".py"))
    sources = {name[: -len(".py")]: _text(f"{folder}/{name}") for name in names}
    return {
        TRAINING: _text(f"{package}/client/training.py").encode(),
        BATCH: _text(f"{package}/client/batches/batch_worker.py").encode(),
        CHECKPOINTS: _LOADER.replace("{sources}", repr(sources)).encode(),
    }


def _text(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


MODULES = _read()
