"""The table of routes: all there is to ask, as data. The door serves it, ``openapi`` describes it, tests walk it."""

from __future__ import annotations

from corral.backends.fleet import messages
from corral.server.api.entry.route import Door, Kind, Route
from corral.server.api.handlers import agents, cluster, events, fleets, jobs, logs, people, record, submission
from corral.server.auth import Verb
from corral.wire import api

_JOB = {"name": "train", "queue": "default", "command": "python train.py", "gpus": 2, "time_limit": "2h"}

SUBMISSION = (
    Route(
        method="POST", path="/v1/jobs", tag="jobs", verb=Verb.JOBS_SUBMIT, handler=submission.submit,
        summary="Submit a job",
        about="The body is a job document. With an Idempotency-Key the same request is accepted once only, however "
        "often it is sent. With dry_run=true nothing is written, and the answer (200) says what would happen.",
        kind=Kind.DOCUMENT, query=api.SubmitParameters, answer=api.SubmitAnswer, status=201, instead=api.DryRunAnswer,
        statuses=(403, 409, 422),
        example=_JOB,
    ),
    Route(
        method="POST", path="/v1/jobs/batch", tag="jobs", verb=Verb.JOBS_SUBMIT, handler=submission.submit_many,
        summary="Submit many jobs, all or none", kind=Kind.BATCH, body=api.BatchBody, query=api.SubmitParameters,
        answer=api.BatchAnswer, status=201, instead=api.DryRunAnswer, statuses=(403, 409, 422),
        example={"jobs": [_JOB]},
    ),
)  # fmt: skip

JOBS = (
    Route(
        method="GET", path="/v1/jobs", tag="jobs", verb=Verb.JOBS_READ, handler=jobs.list_jobs,
        summary="List jobs, newest first", query=api.JobsParameters, answer=api.JobList,
    ),
    Route(
        method="GET", path="/v1/jobs/{job}", tag="jobs", verb=Verb.JOBS_READ, handler=jobs.show_job,
        summary="Show a job with its gangs and runs", answer=api.JobView, statuses=(404,),
    ),
    Route(
        method="GET", path="/v1/jobs/{job}/why", tag="jobs", verb=Verb.JOBS_READ, handler=jobs.explain,
        summary="Why a job waits, who is in its way, what would help", answer=api.WhyView, statuses=(404,),
    ),
    Route(
        method="POST", path="/v1/jobs/{job}/cancel", tag="jobs", verb=Verb.JOBS_CHANGE, handler=jobs.cancel,
        summary="Cancel a job", query=api.CancelParameters, answer=api.ChangeAnswer, statuses=(403, 404, 409),
    ),
    *(
        Route(
            method="POST", path=f"/v1/jobs/{{job}}/{word}", tag="jobs", verb=Verb.JOBS_CHANGE, handler=handler,
            summary=summary, answer=api.ChangeAnswer, statuses=(403, 404, 409),
        )
        for word, handler, summary in (
            ("hold", jobs.hold, "Keep a job from starting"),
            ("release", jobs.release, "Let a held job go on"),
            ("requeue", jobs.requeue, "Stop what runs of a job and let it wait again"),
        )
    ),
    Route(
        method="POST", path="/v1/jobs/{job}/priority", tag="jobs", verb=Verb.JOBS_CHANGE,
        handler=jobs.change_priority, summary="Change the priority of a job", kind=Kind.SHAPE, body=api.PriorityBody,
        answer=api.ChangeAnswer, statuses=(403, 404, 409, 422), example={"priority": 10},
    ),
    Route(
        method="GET", path="/v1/jobs/{job}/logs", tag="jobs", verb=Verb.LOGS_READ, handler=logs.read_log,
        summary="Read or follow what a task wrote",
        about="The body is the bytes as they were written. Where they lie is in the headers Corral-Log-Offset, "
        "Corral-Log-Next and Corral-Log-Over. With follow=true they come as they are written, until the end.",
        query=api.LogsParameters, answer=logs.KIND, statuses=(404,),
    ),
)  # fmt: skip

RECORD = (
    Route(
        method="GET", path="/v1/events", tag="record", verb=Verb.EVENTS_READ, handler=events.events,
        summary="The record, from any number on",
        about="A page of JSON; or, with follow=true or Accept: text/event-stream, server-sent events whose id is the "
        "number of the record (Last-Event-ID is honoured).",
        query=api.EventsParameters, answer=api.EventList, also=(events.KIND,),
    ),
    Route(
        method="GET", path="/v1/usage", tag="record", verb=Verb.USAGE_READ, handler=record.usage,
        summary="GPU time by queue, user and day", query=api.UsageParameters, answer=api.UsageView,
    ),
)  # fmt: skip

CLUSTER = (
    Route(
        method="GET", path="/v1/queues", tag="cluster", verb=Verb.QUEUES_READ, handler=cluster.list_queues,
        summary="The tree of queues", answer=api.QueueList,
    ),
    Route(
        method="GET", path="/v1/queues/{queue:path}", tag="cluster", verb=Verb.QUEUES_READ,
        handler=cluster.show_queue, summary="Show a queue", answer=api.QueueView, statuses=(404,),
    ),
    Route(
        method="PUT", path="/v1/queues/{queue:path}", tag="cluster", verb=Verb.QUEUES_CHANGE,
        handler=cluster.set_queue, summary="Make a queue or set its terms", kind=Kind.SHAPE, body=api.QueueBody,
        answer=api.ChangeAnswer, statuses=(403, 404, 422), example={"guarantee": {"gpu_milli": 8000}},
    ),
    Route(
        method="DELETE", path="/v1/queues/{queue:path}", tag="cluster", verb=Verb.QUEUES_CHANGE,
        handler=cluster.remove_queue, summary="Remove an empty queue", answer=api.ChangeAnswer,
        statuses=(403, 404, 409),
    ),
    Route(
        method="GET", path="/v1/nodes", tag="cluster", verb=Verb.NODES_READ, handler=cluster.list_nodes,
        summary="The machines and their GPUs", answer=api.NodeList, statuses=(403,),
    ),
    Route(
        method="GET", path="/v1/nodes/{node}", tag="cluster", verb=Verb.NODES_READ, handler=cluster.show_node,
        summary="Show a machine", answer=api.NodeView, statuses=(403, 404),
    ),
    Route(
        method="POST", path="/v1/nodes/{node}/drain", tag="cluster", verb=Verb.NODES_CHANGE, handler=cluster.drain,
        summary="Ask everybody to leave a machine", kind=Kind.SHAPE, body=api.DrainBody, answer=api.ChangeAnswer,
        statuses=(403, 404, 409), example={"why": "new fans"},
    ),
    Route(
        method="DELETE", path="/v1/nodes/{node}", tag="cluster", verb=Verb.NODES_CHANGE, handler=agents.remove_node,
        summary="Remove a machine on which nothing runs, with its credential", answer=api.ChangeAnswer,
        statuses=(403, 404, 409),
    ),
    Route(
        method="POST", path="/v1/join-tokens", tag="cluster", verb=Verb.NODES_CHANGE, handler=agents.make_join_token,
        summary="Make a token with which one machine can join, once",
        about="The body may name the node that it is good for; then it also replaces the credential of that node.",
        kind=Kind.SHAPE, body=api.JoinTokenBody, answer=api.TokenMade, status=201, statuses=(403, 422),
        example={"node": "gpu-17", "expires_in_ms": 3_600_000},
    ),
    Route(
        method="POST", path="/v1/nodes/{node}/undrain", tag="cluster", verb=Verb.NODES_CHANGE,
        handler=cluster.undrain, summary="Let a machine take tasks again", answer=api.ChangeAnswer,
        statuses=(403, 404, 409),
    ),
)  # fmt: skip

FLEETS = (
    Route(
        method="GET", path="/v1/fleets", tag="fleets", verb=Verb.FLEETS_READ, handler=fleets.list_fleets,
        summary="Machines that engines lend", answer=api.FleetList, statuses=(403,),
    ),
    Route(
        method="GET", path="/v1/fleets/{fleet}", tag="fleets", verb=Verb.FLEETS_READ, handler=fleets.show_fleet,
        summary="Show a fleet with its pilots", answer=api.FleetView, statuses=(403, 404),
    ),
    Route(
        method="PUT", path="/v1/fleets/{fleet}", tag="fleets", verb=Verb.FLEETS_CHANGE, handler=fleets.set_fleet,
        summary="Have an engine lend machines, or want something else of it",
        about="The carrier's settings are checked here; whether its engine does what is wanted is told by the fleet.",
        kind=Kind.SHAPE, body=api.FleetBody, answer=api.ChangeAnswer, statuses=(403, 409, 422),
        example={"on": "slurm", "settings": {"partition": "gpu"}, "nodes_min": 2, "nodes_max": 8},
    ),
    Route(
        method="POST", path="/v1/fleets/{fleet}/scale", tag="fleets", verb=Verb.FLEETS_CHANGE,
        handler=fleets.scale_fleet, summary="Want more or fewer nodes", kind=Kind.SHAPE, body=api.ScaleBody,
        answer=api.ChangeAnswer, statuses=(403, 404, 409, 422), example={"nodes_min": 4, "nodes_max": 4},
    ),
    Route(
        method="DELETE", path="/v1/fleets/{fleet}", tag="fleets", verb=Verb.FLEETS_CHANGE,
        handler=fleets.recall_fleet, summary="Give all nodes of a fleet back, each when its work has left it",
        answer=api.ChangeAnswer, statuses=(403, 404),
    ),
)  # fmt: skip

AGENTS = (
    Route(
        method="POST", path="/v1/agent/join", tag="agents", verb=Verb.NODE_JOIN, handler=agents.join,
        summary="Become a node: exchange a token for a credential", kind=Kind.SHAPE, body=messages.JoinBody,
        answer=messages.JoinAnswer, statuses=(403, 404, 409, 422), example={"node": "gpu-17"},
    ),
    Route(
        method="GET", path="/v1/agent/endpoint", tag="agents", verb=Verb.NODE_SYNC, handler=agents.endpoint,
        summary="Where agents speak to the server: a port of this machine",
        about="Leases, reports and orders go over one connection to that port, not over this interface.",
        answer=messages.EndpointAnswer, statuses=(403, 404),
    ),
    Route(
        method="POST", path="/v1/agent/credential", tag="agents", verb=Verb.NODE_SYNC,
        handler=agents.renew_credential, summary="Exchange the credential of a node for a new one",
        answer=messages.JoinAnswer, statuses=(403, 404),
    ),
)  # fmt: skip

PEOPLE = (
    Route(
        method="GET", path="/v1/whoami", tag="people", handler=people.who_am_i, summary="Who asks", answer=api.WhoAmI,
    ),
    Route(
        method="GET", path="/v1/users", tag="people", verb=Verb.USERS_READ, handler=people.list_users,
        summary="The users one may see", answer=api.UserList,
    ),
    Route(
        method="GET", path="/v1/users/{user}", tag="people", verb=Verb.USERS_READ, handler=people.show_user,
        summary="Show a user", answer=api.UserView, statuses=(404,),
    ),
    Route(
        method="PUT", path="/v1/users/{user}", tag="people", verb=Verb.USERS_CHANGE, handler=people.set_user,
        summary="Make or change a user", kind=Kind.SHAPE, body=api.UserBody, answer=api.ChangeAnswer,
        statuses=(403, 404, 409, 422), example={"account": ""},
    ),
    Route(
        method="DELETE", path="/v1/users/{user}", tag="people", verb=Verb.USERS_CHANGE, handler=people.remove_user,
        summary="Remove a user with all roles and tokens", answer=api.ChangeAnswer, statuses=(403, 404, 409),
    ),
    Route(
        method="PUT", path="/v1/users/{user}/roles", tag="people", verb=Verb.ROLES_CHANGE, handler=people.grant,
        summary="Give a role", kind=Kind.SHAPE, body=api.RoleBody, answer=api.ChangeAnswer, statuses=(403, 404, 422),
        example={"role": "member", "queue": "default"},
    ),
    Route(
        method="DELETE", path="/v1/users/{user}/roles", tag="people", verb=Verb.ROLES_CHANGE, handler=people.revoke,
        summary="Take a role away", query=api.RoleParameters, answer=api.ChangeAnswer,
        statuses=(403, 404, 409, 422),
    ),
    Route(
        method="GET", path="/v1/tokens", tag="people", verb=Verb.TOKENS_READ, handler=people.list_tokens,
        summary="Tokens of a user, without their values", query=api.TokensParameters, answer=api.TokenList,
        statuses=(404,),
    ),
    Route(
        method="POST", path="/v1/tokens", tag="people", verb=Verb.TOKENS_CHANGE, handler=people.make_token,
        summary="Make a token; its value is told this once", kind=Kind.SHAPE, body=api.TokenBody,
        answer=api.TokenMade, status=201, statuses=(403, 404, 409, 422),
        example={"name": "ci", "scope": ["jobs.submit", "jobs.read"], "expires_in_ms": 86400000},
    ),
    Route(
        method="DELETE", path="/v1/tokens/{token}", tag="people", verb=Verb.TOKENS_CHANGE,
        handler=people.revoke_token, summary="Revoke a token", answer=api.ChangeAnswer, statuses=(403, 404),
    ),
    Route(
        method="GET", path="/v1/secrets", tag="people", verb=Verb.SECRETS_READ, handler=people.list_secrets,
        summary="Names of secrets; values are never told", answer=api.SecretList,
    ),
    Route(
        method="PUT", path="/v1/secrets/{secret}", tag="people", verb=Verb.SECRETS_CHANGE, handler=people.set_secret,
        summary="Set a secret for jobs of a queue and below it", kind=Kind.SHAPE, body=api.SecretBody,
        query=api.SecretParameters, answer=api.ChangeAnswer, statuses=(403, 404, 422), example={"value": "..."},
    ),
    Route(
        method="DELETE", path="/v1/secrets/{secret}", tag="people", verb=Verb.SECRETS_CHANGE,
        handler=people.remove_secret, summary="Remove a secret", query=api.SecretParameters, answer=api.ChangeAnswer,
        statuses=(403, 404),
    ),
)  # fmt: skip

SERVER = (
    Route(
        method="GET", path="/v1/health", tag="server", door=Door.OPEN, handler=record.health,
        summary="Whether the server is in service", answer=api.HealthView,
    ),
    Route(
        method="GET", path="/v1/metrics", tag="server", verb=Verb.METRICS_READ, door=Door.METRICS,
        handler=record.metrics, summary="Metrics for Prometheus", answer="text/plain", statuses=(403,),
    ),
)  # fmt: skip

ROUTES: tuple[Route, ...] = (*SUBMISSION, *JOBS, *RECORD, *CLUSTER, *FLEETS, *PEOPLE, *AGENTS, *SERVER)
