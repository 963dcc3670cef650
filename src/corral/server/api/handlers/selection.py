"""From the name of a job in a request, such as ``35[3-9]``, to its gangs.

The names are read by ``wire.api.selector``. A name that is wrong, and a job that does not exist, give the same answer.
"""

from __future__ import annotations

from corral.core.gang_id import gang_id
from corral.core.intake.refusal import Refusal
from corral.core.model import JobSpec
from corral.server.api.http.problems import ApiError, refused
from corral.server.api.http.request import ApiRequest
from corral.wire.api.selector import BadSelector, Selector, parse
from corral.wire.job.arrays import write_array

_ARRAY_SHOWN = 60  # characters of the indices of an array in an answer


def selector_of(request: ApiRequest) -> Selector:
    """What the path of a request names."""
    name = request.path["job"]
    try:
        return parse(name)
    except BadSelector as wrong:
        raise ApiError(404, "no_such_job", f"there is no job {name[:100]!r}", wrong.hint) from None


def check_selector(spec: JobSpec | None, selector: Selector) -> None:
    """End the request if the job has no such elements or role."""
    answer = None if spec is None or selector.is_whole else gangs_of(spec, selector)
    if isinstance(answer, Refusal):
        raise refused(answer)


def gangs_of(spec: JobSpec, selector: Selector) -> list[str] | Refusal:
    """The ids of the gangs that are named; every part of the name must match some."""
    if selector.indices and not spec.array:
        why = f"job {selector.job} is not an array"
        return Refusal("no_such_element", why, f"write {selector._replace(indices=())}")
    missing = selector.missing(spec.array)
    if missing:
        known = write_array(spec.array, None)
        known = known if len(known) <= _ARRAY_SHOWN else known[:_ARRAY_SHOWN] + "…"
        return Refusal("no_such_element", f"job {selector.job} has no element {missing}", f"its elements are {known}")
    roles = [gang.role for gang in spec.gangs]
    if selector.role and selector.role not in roles:
        why = f"job {selector.job} has no role {selector.role!r}"
        return Refusal("no_such_role", why, f"its roles are {', '.join(roles)}")
    return [
        gang_id(selector.job, role, index)
        for index in spec.array or (None,)
        for role in roles
        if selector.takes(index, role)
    ]
