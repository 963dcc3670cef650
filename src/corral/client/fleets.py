"""Requests about fleets. Each method describes its request; see ``call``."""

from __future__ import annotations

from corral.client.call import ApiCall, call, path
from corral.wire.api.fleets import FleetBody, FleetList, FleetView, ScaleBody
from corral.wire.api.jobs import ChangeAnswer


class FleetCalls:
    """Nodes from providers."""

    @call
    def fleets(self) -> ApiCall[FleetList]:
        """All fleets with their pilots."""
        return ApiCall("GET", path("fleets"), FleetList)

    @call
    def fleet(self, name: str) -> ApiCall[FleetView]:
        """One fleet."""
        return ApiCall("GET", path("fleets", name), FleetView)

    @call
    def set_fleet(self, name: str, wanted: FleetBody) -> ApiCall[ChangeAnswer]:
        """Create a fleet, or change its settings."""
        return ApiCall("PUT", path("fleets", name), ChangeAnswer, body=wanted)

    @call
    def scale_fleet(self, name: str, wanted: ScaleBody) -> ApiCall[ChangeAnswer]:
        """Resize a fleet; None: unchanged."""
        return ApiCall("POST", path("fleets", name, "scale"), ChangeAnswer, body=wanted)

    @call
    def recall_fleet(self, name: str) -> ApiCall[ChangeAnswer]:
        """Give all its nodes back, each when its jobs have left."""
        return ApiCall("DELETE", path("fleets", name), ChangeAnswer)
