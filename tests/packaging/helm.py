"""The chart as Helm renders it. The program comes with the package ``helm-binary`` of the tests; without it they are
skipped."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.architecture.repository import ROOT

CHART = ROOT / "packaging" / "helm" / "corral"


def program() -> str:
    found = shutil.which("helm", path=str(Path(sys.executable).parent)) or shutil.which("helm")
    if found is None:
        pytest.skip("helm is not installed: the package helm-binary of requirements/dev.txt has it")
    return found


def helm(*words: str, check: bool = True) -> str:
    done = subprocess.run([program(), *words], capture_output=True, text=True, timeout=60)
    assert not check or done.returncode == 0, done.stderr
    return done.stdout if check else done.stderr


def rendered(values: str = "", *words: str, namespace: str = "corral", with_definition: bool = False) -> str:
    """All objects as YAML. ``values``: as for ``--set``."""
    more = ["--set", values] if values else []
    more += ["--include-crds"] if with_definition else []
    return helm("template", "corral", str(CHART), "--namespace", namespace, *more, *words)


def objects(text: str) -> list[Any]:
    return [each for each in YAML(typ="safe").load_all(text) if each]


def named(found: list[Any], kind: str, name: str) -> Any:
    return next(each for each in found if (each["kind"], each["metadata"]["name"]) == (kind, name))
