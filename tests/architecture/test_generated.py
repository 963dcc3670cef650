"""Pages that are made from the code are as the code has them. `pytest --accept` writes them again."""

from __future__ import annotations

import pytest

from corral.cli.reference import reference
from corral.controller.definition import definition_text
from corral.core.lifecycle import diagram
from corral.wire.config_page import configuration_page
from corral.wire.environment.environment_page import environment_page
from corral.wire.environment.sbatch_page import sbatch_page
from corral.wire.job.schema import reference_page
from tests.architecture.python_page import python_page
from tests.architecture.repository import ROOT
from tests.packaging.helm import rendered

PAGE = ROOT / "docs" / "lifecycle.md"
HEAD = """# The life of a gang

Made from the table in `corral.core.lifecycle`; `make accept` writes it again.

"""


def test_the_page_of_the_life_of_a_gang_is_current(request: pytest.FixtureRequest) -> None:
    wanted = f"{HEAD}```mermaid\n{diagram()}```\n"
    if request.config.getoption("--accept"):
        PAGE.write_text(wanted)
    assert PAGE.read_text() == wanted


PAGES = {
    "job-file.md": reference_page,
    "configuration.md": configuration_page,
    "cli.md": reference,
    "environment.md": environment_page,
    "python.md": python_page,
    "sbatch-options.md": sbatch_page,
}


@pytest.mark.parametrize("name", PAGES)
def test_references_are_current(name: str, request: pytest.FixtureRequest) -> None:
    page, wanted = ROOT / "docs" / name, PAGES[name]()
    if request.config.getoption("--accept"):
        page.write_text(wanted)
    assert page.read_text() == wanted


DEFINITION = ROOT / "packaging" / "helm" / "corral" / "crds" / "corraljobs.yaml"


def test_the_definition_of_corraljob_in_the_chart_is_current(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--accept"):
        DEFINITION.write_text(definition_text())
    assert DEFINITION.read_text() == definition_text()


MANIFESTS = {
    "one-server.yaml": "tls.allowPlainHttp=true",
    "two-servers.yaml": "tls.secretName=corral-tls,database.secretName=corral-db",
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_the_plain_manifests_are_what_the_chart_renders(name: str, request: pytest.FixtureRequest) -> None:
    wanted = rendered(MANIFESTS[name], namespace="corral", with_definition=True)
    page = ROOT / "packaging" / "kubernetes" / name
    if request.config.getoption("--accept"):
        page.write_text(wanted)
    assert page.read_text() == wanted
