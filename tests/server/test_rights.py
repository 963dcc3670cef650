"""Who may what: every route x every role x own and other queues, against a table written down independently.

Besides the statuses: what is hidden is answered exactly as what is not there, and nothing that an actor may not see is
in any answer to them.
"""

from __future__ import annotations

import json

import pytest

from corral.core.accounts import accounts as a
from corral.core.accounts.accounts import Role
from corral.core.fleets.fleets import FleetSet, FleetSpec
from corral.runtime.base import TaskKey
from corral.server.api.app import all_routes, make_app
from corral.server.api.http.route import Route, RouteAccess
from corral.wire.api.batch import BatchQueueBody
from tests.server.asgi import Answer, Stream, ask
from tests.server.in_memory_service import START_MS, MemoryService

ACTORS = ("none", "nobody", "viewer", "member", "lead", "operator", "administrator")
LIMITED = ("nobody", "viewer", "member", "lead")  # users who may not know the queue org/covert

JOB = {"command": "true", "gpus": 1, "queue": "org/a"}
HIDDEN_JOB = JOB | {"queue": "org/covert"}

# job 1 is the member's, 2 is of another user in the same queue, 3 is in a queue that only operators and
# administrators see, 9 is not there. `nobody` has a token and no role. The lead leads org/a.
TABLE = """
                                              none nobody viewer member lead operator administrator
POST   /v1/jobs                   JOB         401  422    403    201    201  201      201
POST   /v1/jobs?dry_run=true      JOB         401  422    403    200    200  200      200
POST   /v1/jobs                   HIDDEN_JOB  401  422    422    422    422  201      201
POST   /v1/jobs                   LOUD_JOB    401  422    403    422    422  201      201
POST   /v1/jobs                   SLOW_JOB    401  422    403    422    422  201      201
POST   /v1/jobs                   NO_JOB      401  422    422    422    422  422      422
POST   /v1/jobs                   AFTER_3     401  422    403    422    422  201      201
POST   /v1/jobs                   AFTER_9     401  422    403    422    422  422      422
POST   /v1/jobs/batch             BATCH       401  422    403    201    201  201      201
POST   /v1/jobs/batch             HIDDEN      401  422    403    422    422  201      201
POST   /v1/jobs/change            NAMED       401  200    200    200    200  200      200
POST   /v1/jobs/change            FILTERED    401  200    200    200    200  200      200
GET    /v1/jobs                   -           401  200    200    200    200  200      200
GET    /v1/jobs?queue=org/covert  -           401  200    200    200    200  200      200
GET    /v1/jobs/1                 -           401  404    200    200    200  200      200
GET    /v1/jobs/2                 -           401  404    200    200    200  200      200
GET    /v1/jobs/3                 -           401  404    404    404    404  200      200
GET    /v1/jobs/9                 -           401  404    404    404    404  404      404
GET    /v1/jobs/1/why             -           401  404    200    200    200  200      200
GET    /v1/jobs/3/why             -           401  404    404    404    404  200      200
GET    /v1/jobs/1/goodput         -           401  404    200    200    200  200      200
GET    /v1/jobs/3/goodput         -           401  404    404    404    404  200      200
GET    /v1/jobs/1/activity        -           401  404    200    200    200  200      200
GET    /v1/jobs/3/activity        -           401  404    404    404    404  200      200
GET    /v1/jobs/9/activity        -           401  404    404    404    404  404      404
GET    /v1/jobs/1/logs            -           401  404    200    200    200  200      200
GET    /v1/jobs/2/logs            -           401  404    200    200    200  200      200
GET    /v1/jobs/3/logs            -           401  404    404    404    404  200      200
GET    /v1/jobs/1/output          -           401  404    200    200    200  200      200
GET    /v1/jobs/2/output          -           401  404    200    200    200  200      200
GET    /v1/jobs/3/output          -           401  404    404    404    404  200      200
POST   /v1/jobs/1/cancel          -           401  404    403    200    200  200      200
POST   /v1/jobs/1/cancel?now=true -           401  404    403    200    200  200      200
POST   /v1/jobs/2/cancel?now=true -           401  404    403    403    200  200      200
POST   /v1/jobs/2/cancel          -           401  404    403    403    200  200      200
POST   /v1/jobs/3/cancel          -           401  404    404    404    404  200      200
POST   /v1/jobs/9/cancel          -           401  404    404    404    404  404      404
POST   /v1/jobs/1/stream          -           401  404    403    409    409  409      409
POST   /v1/jobs/2/stream          -           401  404    403    403    409  409      409
POST   /v1/jobs/3/stream          -           401  404    404    404    404  409      409
POST   /v1/jobs/1/hold            -           401  404    403    200    200  200      200
POST   /v1/jobs/2/hold            -           401  404    403    403    200  200      200
POST   /v1/jobs/3/hold            -           401  404    404    404    404  200      200
POST   /v1/jobs/1/release         -           401  404    403    409    409  409      409
POST   /v1/jobs/2/release         -           401  404    403    403    409  409      409
POST   /v1/jobs/3/release         -           401  404    404    404    404  409      409
POST   /v1/jobs/1/requeue         -           401  404    403    200    200  200      200
POST   /v1/jobs/2/requeue         -           401  404    403    403    200  200      200
POST   /v1/jobs/3/requeue         -           401  404    404    404    404  200      200
POST   /v1/jobs/1/priority        PRIORITY    401  404    403    200    200  200      200
POST   /v1/jobs/2/priority        PRIORITY    401  404    403    403    200  200      200
POST   /v1/jobs/3/priority        PRIORITY    401  404    404    404    404  200      200
POST   /v1/jobs/1/priority        URGENT      401  404    403    422    422  200      200
GET    /v1/events                 -           401  200    200    200    200  200      200
GET    /v1/usage/parts            -           401  200    200    200    200  200      200
GET    /v1/usage                  -           401  200    200    200    200  200      200
GET    /v1/usage?user=stranger    -           401  200    200    200    200  200      200
GET    /v1/queues                 -           401  200    200    200    200  200      200
GET    /v1/queues/org/a           -           401  404    200    200    200  200      200
GET    /v1/queues/org/covert      -           401  404    404    404    404  200      200
GET    /v1/queues/org/nowhere     -           401  404    404    404    404  404      404
PUT    /v1/queues/org/a           QUEUE       401  404    403    403    403  403      200
PUT    /v1/queues/org/a/new       QUEUE       401  404    403    403    200  403      200
PUT    /v1/queues/org/covert      QUEUE       401  404    404    404    404  403      200
PUT    /v1/queues/org/new         QUEUE       401  404    404    404    404  403      200
PUT    /v1/queues/org/a/..        QUEUE       401  422    422    422    422  422      422
PUT    /v1/queues/org/a/new       GIFT        401  404    403    403    403  403      200
PUT    /v1/queues/org/a/new       CEILING     401  404    403    403    403  403      200
PUT    /v1/queues/org/a/new       GRACE       401  404    403    403    403  403      200
DELETE /v1/queues/org/a/below     -           401  404    403    403    200  403      200
DELETE /v1/queues/org/covert      -           401  404    404    404    404  403      409
GET    /v1/goodput                -           401  403    200    200    200  200      200
GET    /v1/activity               -           401  403    200    200    200  200      200
GET    /v1/nodes                  -           401  403    200    200    200  200      200
GET    /v1/nodes/n0               -           401  403    200    200    200  200      200
GET    /v1/nodes/n9               -           401  403    404    404    404  404      404
POST   /v1/nodes/n0/drain         WHY         401  403    403    403    403  200      200
POST   /v1/nodes/n0/cordon        WHY         401  403    403    403    403  200      200
POST   /v1/nodes/n0/uncordon      -           401  403    403    403    403  409      409
POST   /v1/nodes/n0/undrain       -           401  403    403    403    403  409      409
DELETE /v1/nodes/n0               -           401  403    403    403    403  409      409
DELETE /v1/nodes/n9               -           401  403    404    404    404  404      404
POST   /v1/join-tokens            -           401  403    403    403    403  201      201
GET    /v1/batch                  -           401  200    200    200    200  200      200
GET    /v1/batch/embed            -           401  404    200    200    200  200      200
GET    /v1/batch/covert           -           401  404    404    404    404  200      200
GET    /v1/batch/none             -           401  404    404    404    404  404      404
PUT    /v1/batch/fresh            NEW_BATCH   401  404    403    200    200  200      200
POST   /v1/batch/embed            ITEMS       401  404    403    200    200  200      200
POST   /v1/batch/covert           ITEMS       401  404    404    404    404  200      200
POST   /v1/batch/embed/results    IDS         401  404    200    200    200  200      200
POST   /v1/batch/covert/results   IDS         401  404    404    404    404  200      200
POST   /v1/batch/embed/flush      -           401  404    403    200    200  200      200
POST   /v1/batch/embed/drain      -           401  404    403    200    200  200      200
POST   /v1/batch/embed/undrain    -           401  404    403    200    200  200      200
DELETE /v1/batch/embed            -           401  404    403    200    200  200      200
DELETE /v1/batch/covert           -           401  404    404    404    404  200      200
GET    /v1/fleets                 -           401  403    403    403    403  200      200
GET    /v1/fleets/gpu             -           401  403    403    403    403  200      200
GET    /v1/fleets/none            -           401  403    403    403    403  404      404
PUT    /v1/fleets/gpu             FLEET       401  403    403    403    403  409      409
POST   /v1/fleets/gpu/scale       SCALE       401  403    403    403    403  200      200
POST   /v1/fleets/none/scale      SCALE       401  403    403    403    403  404      404
DELETE /v1/fleets/gpu             -           401  403    403    403    403  200      200
DELETE /v1/fleets/none            -           401  403    403    403    403  404      404
POST   /v1/agent/join             JOIN        401  404    404    404    404  404      404
POST   /v1/agent/credential       -           401  404    404    404    404  404      404
POST   /v1/agent/streams?task=x&seat=1 -      401  404    404    404    404  404      404
POST   /v1/agent/streams/x        -           401  404    404    404    404  404      404
GET    /v1/agent/endpoint         -           401  404    404    404    404  404      404
GET    /v1/whoami                 -           401  200    200    200    200  200      200
GET    /v1/users                  -           401  200    200    200    200  200      200
GET    /v1/users/member           -           401  404    404    200    200  404      200
GET    /v1/users/stranger         -           401  404    404    404    404  404      200
GET    /v1/users/ghost            -           401  404    404    404    404  404      404
PUT    /v1/users/member           USER        401  404    404    403    404  404      200
PUT    /v1/users/fresh            USER        401  404    404    404    404  404      200
DELETE /v1/users/member           -           401  404    404    403    404  404      200
DELETE /v1/users/stranger         -           401  404    404    404    404  404      200
PUT    /v1/users/member/roles     LEAD_A      401  404    404    403    200  404      200
PUT    /v1/users/viewer/roles     LEAD_A      401  404    403    404    200  404      200
PUT    /v1/users/viewer/roles     ADMIN_A     401  404    403    404    403  404      200
PUT    /v1/users/viewer/roles     HIDDEN_A    401  404    403    404    403  404      200
PUT    /v1/users/ghost/roles      LEAD_A      401  404    404    404    404  404      404
DELETE /v1/users/member/roles?role=member&queue=org/a        - 401 404 404 403 200 404 200
DELETE /v1/users/stranger/roles?role=member&queue=org/covert - 401 404 404 404 404 404 200
GET    /v1/tokens                 -           401  200    200    200    200  200      200
GET    /v1/tokens?user=stranger   -           401  404    404    404    404  404      200
GET    /v1/tokens?user=ghost      -           401  404    404    404    404  404      404
POST   /v1/tokens                 TOKEN       401  201    201    201    201  201      201
POST   /v1/tokens                 TOKEN_OTHER 401  404    404    404    404  404      201
DELETE /v1/tokens/{stranger}      -           401  404    404    404    404  404      200
DELETE /v1/tokens/{nowhere}       -           401  404    404    404    404  404      404
DELETE /v1/tokens/{whole}         -           400  400    400    400    400  400      400
GET    /v1/users/{whole}          -           400  400    400    400    400  400      400
GET    /v1/secrets                -           401  200    200    200    200  200      200
PUT    /v1/secrets/key?queue=org/a       VALUE 401 404    404    403    200  403      200
PUT    /v1/secrets/key?queue=org/covert  VALUE 401 404    404    404    404  403      200
PUT    /v1/secrets/key            VALUE       401  404    404    404    404  403      200
DELETE /v1/secrets/mine?queue=org/a      -    401  404    404    403    200  403      200
DELETE /v1/secrets/covert-key?queue=org/covert - 401 404  404    404    404  403      200
GET    /v1/sign-in                -           200  200    200    200    200  200      200
POST   /v1/sign-in/device         PROVIDER    404  404    404    404    404  404      404
POST   /v1/sign-in/device/result  FLOW        403  403    403    403    403  403      403
POST   /v1/sign-in/browser        PROVIDER    404  404    404    404    404  404      404
POST   /v1/sign-in/browser/result BROWSER     403  403    403    403    403  403      403
POST   /v1/sign-in/refresh        REFRESH     404  404    404    404    404  404      404
POST   /v1/sign-in/exchange       ID_TOKEN    403  403    403    403    403  403      403
POST   /v1/sign-out               SIGN_OUT    401  200    200    200    200  200      200
PUT    /v1/users/member/provider  PROVIDER    401  404    404    403    404  404      404
PUT    /v1/users/member/provider  NO_PROVIDER 401  404    404    403    404  404      200
PUT    /v1/users/ghost/provider   NO_PROVIDER 401  404    404    404    404  404      404
POST   /v1/jobs/check             CHECK       401  200    200    200    200  200      200
GET    /v1/jobs/1/document        -           401  404    200    200    200  200      200
GET    /v1/jobs/3/document        -           401  404    404    404    404  200      200
GET    /v1/attempts               -           401  200    200    200    200  200      200
GET    /v1/line                   -           401  200    200    200    200  200      200
GET    /v1/search?text=o          -           401  200    200    200    200  200      200
GET    /v1/series?names=job/3/cpu -           401  200    200    200    200  200      200
GET    /v1/live?parts=nodes,queues -           401  403    200    200    200  200      200
GET    /v1/topology               -           401  403    200    200    200  200      200
POST   /v1/session                -           422  422    422    422    422  422      422
GET    /v1/session                -           401  404    404    404    404  404      404
DELETE /v1/session                -           401  404    404    404    404  404      404
POST   /v1/session-codes          -           401  201    201    201    201  201      201
GET    /v1/templates              -           401  403    403    200    200  200      200
PUT    /v1/templates/mine         CHECK       401  403    403    200    200  200      200
PUT    /v1/templates/all?site=true CHECK      401  403    403    403    403  200      200
DELETE /v1/templates/hers         -           401  403    403    200    404  404      404
DELETE /v1/templates/common?site=true -       401  403    403    403    403  200      200
GET    /                          -           200  200    200    200    200  200      200
GET    /ui/none/app.js            -           404  404    404    404    404  404      404
GET    /v1/health                 -           200  200    200    200    200  200      200
GET    /v1/metrics                -           401  403    403    403    403  200      200
GET    /v1/intake                 -           401  403    403    403    403  200      200
POST   /v1/intake                 MESSAGES    401  403    403    403    403  403      200
GET    /v1/openapi.json           -           200  200    200    200    200  200      200
GET    /v1/docs                   -           200  200    200    200    200  200      200
"""

BODIES: dict[str, object] = {
    "-": b"",
    "JOB": JOB,
    "MESSAGES": {"messages": [{"id": "m-1", "user": "stranger", "body": "{}"}]},
    "CHECK": {"text": "command: true"},
    "HIDDEN_JOB": HIDDEN_JOB,
    "LOUD_JOB": JOB | {"priority": 1},
    "SLOW_JOB": JOB | {"grace": "1d"},
    "NO_JOB": JOB | {"queue": "org/nowhere"},
    "AFTER_3": JOB | {"after": ["3"]},
    "AFTER_9": JOB | {"after": ["9"]},
    "BATCH": {"jobs": [JOB, JOB]},
    "NEW_BATCH": {"queue": JOB["queue"], "handler": "embed:embed"},
    "ITEMS": {"items": [1, 2]},
    "IDS": {"ids": ["a"]},
    "NAMED": {"change": "cancel", "jobs": ["1", "3"]},
    "FILTERED": {"change": "cancel", "filter": {"all": True}},
    "HIDDEN": {"jobs": [JOB, HIDDEN_JOB]},
    "PRIORITY": {"priority": -1},
    "URGENT": {"priority": 1},
    "QUEUE": {"weight": 2},
    "GIFT": {"guarantee": {"gpu_milli": 1000}},
    "CEILING": {"priority_ceiling": 1},
    "GRACE": {"grace_max_ms": 86_400_000},
    "WHY": {"why": "dust"},
    "JOIN": {"node": "n1"},
    "FLEET": {"on": "slurm", "nodes_min": 2, "nodes_max": 2},
    "SCALE": {"nodes_max": 3},
    "USER": {"account": "somebody"},
    "LEAD_A": {"role": "lead", "queue": "org/a"},
    "ADMIN_A": {"role": "administrator", "queue": "org/a"},
    "HIDDEN_A": {"role": "member", "queue": "org/covert"},
    "TOKEN": {"name": "mine"},
    "TOKEN_OTHER": {"user": "stranger"},
    "VALUE": {"value": "tell-nobody"},
    "PROVIDER": {"provider": "company"},
    "NO_PROVIDER": {},
    "FLOW": {"id": "x"},
    "BROWSER": {"state": "x", "code": "x"},
    "REFRESH": {"provider": "company", "refresh_token": "x"},
    "ID_TOKEN": {"token": "a.b.c"},
    "SIGN_OUT": {},
}


def rows() -> list[tuple[str, str, str, dict[str, int]]]:
    found = []
    for line in TABLE.strip().splitlines()[1:]:
        method, path, body, *statuses = line.split()
        assert len(statuses) == len(ACTORS), line
        found.append((method, path, body, dict(zip(ACTORS, map(int, statuses), strict=True))))
    return found


ROWS = rows()


class Place:
    """Three jobs that run, logs, secrets and users, and a token for every actor."""

    def __init__(self) -> None:
        service = self.service = MemoryService()
        for queue in ("org", "org/a", "org/a/below", "org/covert"):
            service.queue(queue)
        self.tokens = {
            "none": "",
            "administrator": service.user("administrator", (Role.ADMINISTRATOR, "")),
            "operator": service.user("operator", (Role.OPERATOR, "")),
            "lead": service.user("lead", (Role.LEAD, "org/a")),
            "member": service.user("member", (Role.MEMBER, "org/a")),
            "viewer": service.user("viewer", (Role.VIEWER, "org/a")),
            "nobody": service.user("nobody"),
            "peer": service.user("peer", (Role.MEMBER, "org/a")),
            "stranger": service.user("stranger", (Role.MEMBER, "org/covert")),
        }
        self.app = make_app(service)

    async def fill(self) -> Place:
        service = self.service
        hidden = HIDDEN_JOB | {"name": "covert-name", "env": {"K": "covert-env"}}
        for actor, job in (("member", JOB), ("peer", JOB | {"env": {"K": "peer-env"}}), ("stranger", hidden)):
            assert (await ask(self.app, "POST", "/v1/jobs", self.tokens[actor], job)).status == 201
        service.plan()
        for number, log in (("1", b"log"), ("2", b"log"), ("3", b"covert-log")):
            service.backend.logs[TaskKey(f"{number}/main", 1, 0), "stdout"] = log
        now_ms = service.now_ms()
        service.do_accounts("root", [a.SecretSet(now_ms, "mine", "org/a")])
        service.do_accounts("root", [a.SecretSet(now_ms, "covert-key", "org/covert")])
        service.do_accounts("root", [a.TemplateSet(now_ms, "hers", "member", "command: true\n")])
        service.do_accounts("root", [a.TemplateSet(now_ms, "common", "", "command: true\n")])
        service.do_accounts("root", [a.TemplateSet(now_ms, "covert-template", "stranger", "name: covert-text\n")])
        service.batches[0].put("embed", "member", BatchQueueBody(str(JOB["queue"]), "embed:embed"))
        service.batches[0].put("covert", "stranger", BatchQueueBody("org/covert", "embed:embed"))
        service.do_fleets("root", [FleetSet(now_ms, FleetSpec(name="gpu", kind="slurm"), "operator", "c0ffee")])
        return self

    def path(self, path: str) -> str:
        whole = self.tokens["stranger"]
        return path.format(stranger=whole.split("_")[1], nowhere="0" * 16, whole=whole)


@pytest.mark.parametrize(("method", "path", "body", "statuses"), ROWS, ids=[" ".join(row[:3]) for row in ROWS])
async def test_the_table_holds(method, path, body, statuses):
    for actor, status in statuses.items():
        place = await Place().fill()
        answer = await ask(place.app, method, place.path(path), place.tokens[actor], BODIES[body])
        assert answer.status == status, (actor, answer.body)
        check_answer(answer)
        check_nothing_leaks(answer, actor, path)
        place.app.close()


def check_answer(answer: Answer) -> None:
    assert answer.headers["x-request-id"]
    if answer.status >= 400:
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["request_id"] == answer.headers["x-request-id"]
    if answer.status == 401:
        assert answer.headers["www-authenticate"].startswith("Bearer")


def check_nothing_leaks(answer: Answer, actor: str, path: str) -> None:
    """A name that was sent is returned; nothing else of what is hidden is."""
    told = answer.body.replace(b"org/covert", b"").replace(b"stranger", b"") if answer.status >= 400 else answer.body
    if actor in LIMITED and "covert" not in path:
        assert b"covert" not in told, actor
        assert b"stranger" not in told, actor
    if actor in ("nobody", "viewer", "member"):
        assert b"peer-env" not in told, actor


def test_every_route_is_in_the_table():
    for route in all_routes():
        prefix = route.path.partition("{")[0]
        covered = [path for method, path, _, _ in ROWS if method == route.method and path.startswith(prefix)]
        tail = route.path.rpartition("}")[2]
        assert any(path.partition("?")[0].endswith(tail) for path in covered), (route.method, route.path)


HIDDEN_AND_ABSENT = [
    ("GET", "/v1/jobs/3", "/v1/jobs/9", "-", "-"),
    ("POST", "/v1/jobs/3/cancel", "/v1/jobs/9/cancel", "-", "-"),
    ("GET", "/v1/jobs/3/logs", "/v1/jobs/9/logs", "-", "-"),
    ("GET", "/v1/jobs/3/why", "/v1/jobs/9/why", "-", "-"),
    ("GET", "/v1/queues/org/covert", "/v1/queues/org/nowhere", "-", "-"),
    ("PUT", "/v1/queues/org/covert", "/v1/queues/org/nowhere", "QUEUE", "QUEUE"),
    ("DELETE", "/v1/queues/org/covert", "/v1/queues/org/nowhere", "-", "-"),
    ("GET", "/v1/users/stranger", "/v1/users/ghost", "-", "-"),
    ("DELETE", "/v1/users/stranger", "/v1/users/ghost", "-", "-"),
    ("GET", "/v1/tokens?user=stranger", "/v1/tokens?user=ghost", "-", "-"),
    ("DELETE", "/v1/tokens/{stranger}", "/v1/tokens/{nowhere}", "-", "-"),
    ("POST", "/v1/jobs", "/v1/jobs", "HIDDEN_JOB", "NO_JOB"),
    ("POST", "/v1/jobs", "/v1/jobs", "AFTER_3", "AFTER_9"),
    ("DELETE", "/v1/secrets/covert-key?queue=org/covert", "/v1/secrets/ghost?queue=org/nowhere", "-", "-"),
]


@pytest.mark.parametrize("actor", ["viewer", "member", "lead"])
@pytest.mark.parametrize(("method", "hidden", "absent", "body", "other"), HIDDEN_AND_ABSENT)
async def test_what_is_hidden_is_answered_as_what_is_not_there(method, hidden, absent, body, other, actor):
    place = await Place().fill()
    answers = []
    for path, sent in ((hidden, body), (absent, other)):
        answer = await ask(place.app, method, place.path(path), place.tokens[actor], BODIES[sent])
        told = answer.json() | {"request_id": ""}
        names = ("org/covert", "org/nowhere", "stranger", "ghost", "covert-key", "'3'", "'9'")
        text = json.dumps(told)
        for name in (*names, place.path("{stranger}"), place.path("{nowhere}")):
            text = text.replace(name, "?")
        answers.append((answer.status, text))
    assert answers[0] == answers[1]


def status_without_a_token(route: Route) -> int:
    """Of a request without a body."""
    if route.access not in (RouteAccess.OPEN, RouteAccess.SIGN_IN):
        return 401
    return {"/v1/sign-in/device": 404, "/v1/sign-in/browser": 404, "/ui/{version}/{file:path}": 404}.get(
        route.path, 200 if route.body is None else 422
    )


@pytest.mark.parametrize("route", all_routes(), ids=lambda route: f"{route.method} {route.path}")
@pytest.mark.parametrize("token", ["expired", "revoked", "disabled", "wrong secret", "wrong scheme", "not a token"])
async def test_tokens_that_are_not_good_open_nothing(route, token):
    service = MemoryService()
    good = service.user("root", (Role.ADMINISTRATOR, ""))
    headers = [("Authorization", f"Bearer {good}")]
    number = good.split("_")[1]
    if token == "expired":
        headers = [("Authorization", f"Bearer {service.token('root', expires_ms=START_MS)}")]
    elif token == "revoked":
        service.do_accounts("root", [a.TokenRevoked(START_MS, number)])
    elif token == "disabled":
        service.do_accounts("root", [a.UserSet(START_MS, "root", "", True)])
    elif token == "wrong secret":
        headers = [("Authorization", f"Bearer corral_{number}_{'x' * 43}")]
    elif token == "wrong scheme":
        headers = [("Authorization", f"Basic {good}")]
    else:
        headers = [("Authorization", "Bearer \xff\xfe")]
    path = route.path.replace(":path", "").replace("{", "").replace("}", "")
    app = make_app(service)
    answer = await ask(app, route.method, path, headers=headers)
    app.close()
    assert answer.status == status_without_a_token(route)


@pytest.mark.parametrize("route", all_routes(), ids=lambda route: f"{route.method} {route.path}")
async def test_a_narrow_token_is_good_for_its_verbs_only(route):
    service = MemoryService()
    service.queue("q")
    service.user("root", (Role.ADMINISTRATOR, ""))
    token = service.token("root", scope=("queues.read",))
    path = route.path.replace("{queue:path}", "q").replace("{", "").replace("}", "")
    app = make_app(service)
    answer = await ask(app, route.method, path, token)
    app.close()
    if route.path == "/v1/session":
        assert answer.status == (422 if route.method == "POST" else 404)
    elif route.verb is None or route.verb == "queues.read":
        is_open = route.access is RouteAccess.OPEN
        assert answer.status == (status_without_a_token(route) if is_open else 200)
    else:
        assert (answer.status, answer.code) == (403, "out_of_scope")


@pytest.mark.parametrize("actor", ["viewer", "member", "lead"])
async def test_the_feed_tells_nothing_of_others(actor):
    place = await Place().fill()
    place.service.do("root", [])
    async with Stream(place.app, "/v1/events?follow=true", place.tokens[actor]) as stream:
        found = await stream.until(b'"job":"2"')
        assert (await ask(place.app, "POST", "/v1/jobs", place.tokens["stranger"], HIDDEN_JOB)).status == 201
        assert (await ask(place.app, "POST", "/v1/jobs", place.tokens["member"], JOB)).status == 201
        found += await stream.until(b'"job":"5"')
    assert b"covert" not in found
    assert b"stranger" not in found
    assert b'"job":"1"' in found
    assert b"digest" not in found


@pytest.mark.parametrize("actor", ["viewer", "member", "lead"])
async def test_nodes_show_that_they_are_busy_but_not_by_whom(actor):
    place = await Place().fill()
    [node] = (await ask(place.app, "GET", "/v1/nodes", place.tokens[actor])).json()["nodes"]
    assert node["gangs"] == ["1/main", "2/main"]
    assert node["gangs_hidden"] == 1
    assert sum(gpu["busy"] for gpu in node["gpus"]) == 3
    assert all(gpu["simulated"] for gpu in node["gpus"])


@pytest.mark.parametrize(("actor", "sees"), [("member", False), ("lead", False), ("operator", True)])
async def test_who_is_in_the_way_is_named_only_to_those_who_may_know(actor, sees):
    place = await Place().fill()
    for owner, job in (("stranger", HIDDEN_JOB | {"gpus": 5}), ("member", JOB | {"gpus": 8})):
        assert (await ask(place.app, "POST", "/v1/jobs", place.tokens[owner], job)).status == 201
        place.service.plan()
    answer = await ask(place.app, "GET", "/v1/jobs/5/why", place.tokens[actor])
    [gang] = answer.json()["gangs"]
    assert gang["reasons"][0]["code"] == "NoCapacity"
    assert len(gang["in_the_way"]) == 4
    assert (b"stranger" in answer.body) is sees
    assert (b"covert" in answer.body) is sees
    assert (b"4/main" in answer.body) is sees
