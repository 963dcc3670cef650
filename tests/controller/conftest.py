from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.controller.controller_site import ControllerSite
from tests.kubernetes.control_plane import ControlPlane


@pytest.fixture(scope="module")
def site(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControllerSite]:
    made = ControllerSite(control_plane, tmp_path_factory.mktemp("controller"))
    try:
        yield made.start()
    finally:
        made.stop()
