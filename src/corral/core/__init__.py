"""The core (pure): events fold into state, facts and commands become events, a plan is checked and committed.

No input or output, no clock, no randomness, no logging: time and identity are arguments.
"""

from corral.core.cluster.capacity import Capacity
from corral.core.cluster.resources import Amounts, Demand, Gpu, Seat, TaskDemand, amounts
from corral.core.cluster.topology import Domain, NodeSpec, Topology
from corral.core.commit import commit
from corral.core.effects import Effect, KillGang, StartGang, WarnGang
from corral.core.engine import Applied, Policy, apply_all, react
from corral.core.events import Event
from corral.core.facts import Fact
from corral.core.intake.refusal import Refusal
from corral.core.laws import LawBroken, check
from corral.core.model import (
    Blocker,
    Budget,
    Cause,
    Dependency,
    FailureClass,
    Gang,
    GangSpec,
    GangState,
    Health,
    Job,
    JobSpec,
    Profile,
    QueueSpec,
    QuotaChange,
    Reservation,
    RetryRule,
    Settings,
)
from corral.core.plan import (
    Decision,
    DropClaim,
    Evict,
    Grow,
    MakeRoom,
    Place,
    Plan,
    Repair,
    Spread,
    Victim,
)
from corral.core.snapshot import Draft, Snapshot
from corral.core.state import State

__all__ = [
    "Amounts",
    "Applied",
    "Blocker",
    "Budget",
    "Capacity",
    "Cause",
    "Decision",
    "Demand",
    "Dependency",
    "Domain",
    "Draft",
    "DropClaim",
    "Effect",
    "Event",
    "Evict",
    "Fact",
    "FailureClass",
    "Gang",
    "GangSpec",
    "GangState",
    "Gpu",
    "Grow",
    "Health",
    "Job",
    "JobSpec",
    "KillGang",
    "LawBroken",
    "MakeRoom",
    "NodeSpec",
    "Place",
    "Plan",
    "Policy",
    "Profile",
    "QueueSpec",
    "QuotaChange",
    "Refusal",
    "Repair",
    "Reservation",
    "RetryRule",
    "Seat",
    "Settings",
    "Snapshot",
    "Spread",
    "StartGang",
    "State",
    "TaskDemand",
    "Topology",
    "Victim",
    "WarnGang",
    "amounts",
    "apply_all",
    "check",
    "commit",
    "react",
]
