"""What can be asked about fleets. Each method describes its request; see ``call``."""

from __future__ import annotations

from corral.client.call import Call, call, path
from corral.wire.api.fleets import FleetBody, FleetList, FleetView, ScaleBody
from corral.wire.api.jobs import ChangeAnswer


class FleetCalls:
    """Machines that engines lend."""

    @call
    def fleets(self) -> Call[FleetList]:
        """All of them, with their pilots."""
        return Call("GET", path("fleets"), FleetList)

    @call
    def fleet(self, name: str) -> Call[FleetView]:
        """One of them."""
        return Call("GET", path("fleets", name), FleetView)

    @call
    def set_fleet(self, name: str, wanted: FleetBody) -> Call[ChangeAnswer]:
        """Have an engine lend machines, or want something else of it."""
        return Call("PUT", path("fleets", name), ChangeAnswer, body=wanted)

    @call
    def scale_fleet(self, name: str, wanted: ScaleBody) -> Call[ChangeAnswer]:
        """Want more or fewer nodes; what is not stated stays."""
        return Call("POST", path("fleets", name, "scale"), ChangeAnswer, body=wanted)

    @call
    def recall_fleet(self, name: str) -> Call[ChangeAnswer]:
        """Give all its nodes back, each when its work has left it."""
        return Call("DELETE", path("fleets", name), ChangeAnswer)
