"""The table of all routes, as data. The endpoint serves it, ``openapi`` describes it, tests iterate over it."""

from __future__ import annotations

from corral.remote import messages
from corral.server.api import task_streams
from corral.server.api.handlers import (
    accounts,
    activity,
    agents,
    cluster,
    events,
    fleets,
    job_changes,
    job_output,
    jobs,
    logs,
    record,
    signing_in,
    submission,
)
from corral.server.api.http.route import BodyKind, Route, RouteAccess
from corral.server.api.live_routes import LIVE, SESSIONS
from corral.server.auth import Verb
from corral.server.batches.batch_routes import BATCH
from corral.server.intakes.intake_routes import INTAKE
from corral.wire import api

_JOB = {"name": "train", "queue": "default", "command": "python train.py", "gpus": 2, "time_limit": "2h"}

SUBMISSION = (
    Route(
        method="POST", path="/v1/jobs", tag="jobs", verb=Verb.JOBS_SUBMIT, handler=submission.submit,
        summary="Submit a job",
        about="The body is a job document. With an Idempotency-Key a request sent again is not submitted again. With "
        "dry_run=true nothing is submitted, and the answer (200) says what would happen.",
        kind=BodyKind.DOCUMENT, query=api.SubmitParameters, answer=api.SubmitAnswer, status=201,
        instead=api.DryRunAnswer, statuses=(403, 409, 422),
        example=_JOB,
    ),
    Route(
        method="POST", path="/v1/jobs/batch", tag="jobs", verb=Verb.JOBS_SUBMIT, handler=submission.submit_many,
        summary="Submit many jobs, all or none", kind=BodyKind.BATCH, body=api.BatchBody, query=api.SubmitParameters,
        answer=api.BatchAnswer, status=201, instead=api.DryRunAnswer, statuses=(403, 409, 422),
        example={"jobs": [_JOB]},
    ),
)  # fmt: skip

JOBS = (
    Route(
        method="POST", path="/v1/jobs/change", tag="jobs", verb=Verb.JOBS_CHANGE, handler=job_changes.change_jobs,
        summary="Change many jobs: those that are named, or all that match a filter",
        about="Each job is changed by itself, and one that cannot be changed does not stop the others. With dry_run "
        "nothing is changed, and `matched` is the number of jobs that would be. With `expect` nothing is changed "
        "unless exactly as many match.",
        kind=BodyKind.SHAPE, body=api.ChangeJobsBody, answer=api.ChangeJobsAnswer, statuses=(403, 409, 422),
        example={"change": "cancel", "filter": {"name": "sweep*", "states": ["waiting"]}},
    ),
    Route(
        method="GET", path="/v1/jobs", tag="jobs", verb=Verb.JOBS_READ, handler=jobs.list_jobs,
        summary="List jobs, newest first", query=api.JobsParameters, answer=api.JobList,
    ),
    Route(
        method="GET", path="/v1/jobs/{job}", tag="jobs", verb=Verb.JOBS_READ, handler=jobs.show_job,
        summary="Show a job with its gangs and attempts", answer=api.JobView, statuses=(404,),
    ),
    Route(
        method="GET", path="/v1/jobs/{job}/why", tag="jobs", verb=Verb.JOBS_READ, handler=jobs.explain,
        summary="Why a job waits, which jobs are in its way, what would help", answer=api.WhyView, statuses=(404,),
    ),
    Route(
        method="GET", path="/v1/jobs/{job}/activity", tag="jobs", verb=Verb.JOBS_READ, handler=activity.job_activity,
        summary="What a job does now: GPUs, CPU, memory, steps, and what looks wrong", answer=api.JobActivity,
        statuses=(404,),
    ),
    Route(
        method="GET", path="/v1/jobs/{job}/goodput", tag="jobs", verb=Verb.JOBS_READ, handler=record.job_goodput,
        summary="Which part of its time a job has trained, what the rest was lost to, and how often it should save",
        answer=api.GoodputView, statuses=(404,),
    ),
    Route(
        method="POST", path="/v1/jobs/{job}/cancel", tag="jobs", verb=Verb.JOBS_CHANGE, handler=job_changes.cancel,
        summary="Cancel a job", query=api.CancelParameters, answer=api.ChangeAnswer, statuses=(403, 404, 409),
    ),
    *(
        Route(
            method="POST", path=f"/v1/jobs/{{job}}/{word}", tag="jobs", verb=Verb.JOBS_CHANGE, handler=handler,
            summary=summary, answer=api.ChangeAnswer, statuses=(403, 404, 409),
        )
        for word, handler, summary in (
            ("hold", job_changes.hold, "Hold a job: it does not start until it is released"),
            ("release", job_changes.release, "Release a held job"),
            ("requeue", job_changes.requeue, "Stop a job and requeue it"),
        )
    ),
    Route(
        method="POST", path="/v1/jobs/{job}/priority", tag="jobs", verb=Verb.JOBS_CHANGE,
        handler=job_changes.change_priority, summary="Change the priority of a job", kind=BodyKind.SHAPE,
        body=api.PriorityBody, answer=api.ChangeAnswer, statuses=(403, 404, 409, 422), example={"priority": 10},
    ),
    Route(
        method="GET", path="/v1/jobs/{job}/logs", tag="jobs", verb=Verb.LOGS_READ, handler=logs.read_log,
        summary="Read or follow the output of a task",
        about="The body is the output, byte for byte. The headers Corral-Log-Offset, Corral-Log-Next and "
        "Corral-Log-Over give its position. With follow=true new output is sent as it is written, until the end.",
        query=api.LogsParameters, answer=logs.KIND, statuses=(404,),
    ),
    Route(
        method="POST", path="/v1/jobs/{job}/stream", tag="jobs", verb=Verb.JOBS_CHANGE,
        handler=task_streams.open_stream, summary="A connection to a task of a running job", query=api.StreamParameters,
        about="For `corral exec`, `shell`, `port` and `cp`. The body and the answer are sent at the same time, in the "
        "frames of job steps, until either side ends.",
        answer="application/octet-stream", statuses=(403, 404, 409, 503),
    ),
    Route(
        method="GET", path="/v1/jobs/{job}/output", tag="jobs", verb=Verb.LOGS_READ, handler=job_output.read_output,
        summary="Read or follow all output of a job: both streams of all tasks, in order of time",
        about="Parts of whole lines. Before each part is a line of JSON (OutputHead) that says where it comes from and "
        "how many bytes follow. The last line has over=true; without it the connection was lost. With follow=true new "
        "output is sent as it is written, also that of later attempts, until the job has ended.",
        query=api.OutputParameters, answer=logs.KIND, statuses=(404,),
    ),
)  # fmt: skip

RECORD = (
    Route(
        method="GET", path="/v1/events", tag="record", verb=Verb.EVENTS_READ, handler=events.events,
        summary="Events of the journal, after any record",
        about="A page of JSON; or, with follow=true or Accept: text/event-stream, server-sent events whose id is the "
        "number of the record (Last-Event-ID is honoured).",
        query=api.EventsParameters, answer=api.EventList, also=(events.KIND,), item=api.EventView,
        statuses=(422,),
    ),
    Route(
        method="GET", path="/v1/goodput", tag="record", verb=Verb.NODES_READ, handler=record.cluster_goodput,
        summary="Which part of the GPU time of all jobs was training, since the server started",
        answer=api.GoodputView, statuses=(403,),
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
        handler=cluster.set_queue, summary="Create a queue or change its settings",
        kind=BodyKind.SHAPE, body=api.QueueBody, query=api.QueueParameters, instead=api.QueuePreview,
        answer=api.ChangeAnswer, statuses=(403, 404, 422), example={"guarantee": {"gpu_milli": 8000}},
    ),
    Route(
        method="DELETE", path="/v1/queues/{queue:path}", tag="cluster", verb=Verb.QUEUES_CHANGE,
        handler=cluster.remove_queue, summary="Remove an empty queue", answer=api.ChangeAnswer,
        statuses=(403, 404, 409),
    ),
    Route(
        method="GET", path="/v1/activity", tag="cluster", verb=Verb.NODES_READ, handler=activity.cluster_activity,
        summary="What nodes and running jobs do now: GPUs, CPU, memory, steps, and what looks wrong",
        query=api.ActivityParameters, answer=api.ClusterActivity, statuses=(403,),
    ),
    Route(
        method="GET", path="/v1/nodes", tag="cluster", verb=Verb.NODES_READ, handler=cluster.list_nodes,
        summary="List nodes and their GPUs", answer=api.NodeList, statuses=(403,),
    ),
    Route(
        method="GET", path="/v1/nodes/{node}", tag="cluster", verb=Verb.NODES_READ, handler=cluster.show_node,
        summary="Show a node", answer=api.NodeView, statuses=(403, 404),
    ),
    Route(
        method="POST", path="/v1/nodes/{node}/drain", tag="cluster", verb=Verb.NODES_CHANGE, handler=cluster.drain,
        summary="Drain a node: start nothing new, requeue its jobs after a warning", kind=BodyKind.SHAPE,
        body=api.DrainBody, answer=api.ChangeAnswer,
        statuses=(403, 404, 409), example={"why": "new fans"},
    ),
    Route(
        method="DELETE", path="/v1/nodes/{node}", tag="cluster", verb=Verb.NODES_CHANGE, handler=agents.remove_node,
        summary="Remove a node on which nothing runs, and revoke its credential", answer=api.ChangeAnswer,
        statuses=(403, 404, 409),
    ),
    Route(
        method="POST", path="/v1/join-tokens", tag="cluster", verb=Verb.NODES_CHANGE, handler=agents.make_join_token,
        summary="Create a token with which one node can join, once",
        about="The body may name the node; then the token also replaces the credential of that node.",
        kind=BodyKind.SHAPE, body=api.JoinTokenBody, answer=api.TokenMade, status=201, statuses=(403, 422),
        example={"node": "gpu-17", "expires_in_ms": 3_600_000},
    ),
    Route(
        method="POST", path="/v1/nodes/{node}/undrain", tag="cluster", verb=Verb.NODES_CHANGE,
        handler=cluster.undrain, summary="Undrain a node", answer=api.ChangeAnswer,
        statuses=(403, 404, 409),
    ),
    Route(
        method="POST", path="/v1/nodes/{node}/cordon", tag="cluster", verb=Verb.NODES_CHANGE, handler=cluster.cordon,
        summary="Cordon a node: start nothing new, let its jobs finish", answer=api.ChangeAnswer,
        statuses=(403, 404, 409),
    ),
    Route(
        method="POST", path="/v1/nodes/{node}/uncordon", tag="cluster", verb=Verb.NODES_CHANGE,
        handler=cluster.uncordon, summary="Uncordon a node: start jobs on it again", answer=api.ChangeAnswer,
        statuses=(403, 404, 409),
    ),
)  # fmt: skip

FLEETS = (
    Route(
        method="GET", path="/v1/fleets", tag="fleets", verb=Verb.FLEETS_READ, handler=fleets.list_fleets,
        summary="List fleets: nodes from providers", answer=api.FleetList, statuses=(403,),
    ),
    Route(
        method="GET", path="/v1/fleets/{fleet}", tag="fleets", verb=Verb.FLEETS_READ, handler=fleets.show_fleet,
        summary="Show a fleet with its pilots", answer=api.FleetView, statuses=(403, 404),
    ),
    Route(
        method="PUT", path="/v1/fleets/{fleet}", tag="fleets", verb=Verb.FLEETS_CHANGE, handler=fleets.set_fleet,
        summary="Create a fleet or change its settings",
        about="The settings of the provider are checked here; the fleet shows problems with the provider itself.",
        kind=BodyKind.SHAPE, body=api.FleetBody, answer=api.ChangeAnswer, statuses=(403, 409, 422),
        example={"on": "slurm", "settings": {"partition": "gpu"}, "nodes_min": 2, "nodes_max": 8},
    ),
    Route(
        method="POST", path="/v1/fleets/{fleet}/scale", tag="fleets", verb=Verb.FLEETS_CHANGE,
        handler=fleets.scale_fleet, summary="Resize a fleet", kind=BodyKind.SHAPE, body=api.ScaleBody,
        answer=api.ChangeAnswer, statuses=(403, 404, 409, 422), example={"nodes_min": 4, "nodes_max": 4},
    ),
    Route(
        method="DELETE", path="/v1/fleets/{fleet}", tag="fleets", verb=Verb.FLEETS_CHANGE,
        handler=fleets.recall_fleet, summary="Give all nodes of a fleet back, each when its jobs have left",
        answer=api.ChangeAnswer, statuses=(403, 404),
    ),
)  # fmt: skip

AGENTS = (
    Route(
        method="POST", path="/v1/agent/join", tag="agents", verb=Verb.NODE_JOIN, handler=agents.join,
        summary="Join as a node: exchange a join token for a credential", kind=BodyKind.SHAPE, body=messages.JoinBody,
        answer=messages.JoinAnswer, statuses=(403, 404, 409, 422), example={"node": "gpu-17"},
    ),
    Route(
        method="GET", path="/v1/agent/endpoint", tag="agents", verb=Verb.NODE_SYNC, handler=agents.endpoint,
        summary="The port of the server that agents connect to",
        about="Leases, reports and orders use one connection to that port, not this API.",
        answer=messages.EndpointAnswer, statuses=(403, 404),
    ),
    Route(
        method="POST", path="/v1/agent/credential", tag="agents", verb=Verb.NODE_SYNC,
        handler=agents.renew_credential, summary="Exchange the credential of a node for a new one",
        answer=messages.JoinAnswer, statuses=(403, 404),
    ),
    Route(
        method="POST", path="/v1/agent/streams", tag="agents", verb=Verb.NODE_SYNC, handler=task_streams.open_seat,
        summary="Connect a task of a gang to another one, for job steps", query=api.SeatParameters,
        about="The body and the answer are sent at the same time, until either side ends.",
        answer="application/octet-stream", statuses=(403, 404, 503),
    ),
    Route(
        method="POST", path="/v1/agent/streams/{ticket}", tag="agents", verb=Verb.NODE_SYNC,
        handler=task_streams.take_stream, summary="Connect a task to the client that asked for it",
        about="The body and the answer are sent at the same time, until either side ends.",
        answer="application/octet-stream", statuses=(403, 404),
    ),
)  # fmt: skip

PEOPLE = (
    Route(
        method="GET", path="/v1/whoami", tag="accounts", handler=accounts.who_am_i,
        summary="The user of the token", answer=api.WhoAmI,
    ),
    Route(
        method="GET", path="/v1/users", tag="accounts", verb=Verb.USERS_READ, handler=accounts.list_users,
        summary="List the users you may see", answer=api.UserList,
    ),
    Route(
        method="GET", path="/v1/users/{user}", tag="accounts", verb=Verb.USERS_READ, handler=accounts.show_user,
        summary="Show a user", answer=api.UserView, statuses=(404,),
    ),
    Route(
        method="PUT", path="/v1/users/{user}", tag="accounts", verb=Verb.USERS_CHANGE, handler=accounts.set_user,
        summary="Create or change a user", kind=BodyKind.SHAPE, body=api.UserBody, answer=api.ChangeAnswer,
        statuses=(403, 404, 409, 422), example={"account": ""},
    ),
    Route(
        method="DELETE", path="/v1/users/{user}", tag="accounts", verb=Verb.USERS_CHANGE, handler=accounts.remove_user,
        summary="Remove a user with all roles and tokens", answer=api.ChangeAnswer, statuses=(403, 404, 409),
    ),
    Route(
        method="PUT", path="/v1/users/{user}/roles", tag="accounts", verb=Verb.ROLES_CHANGE, handler=accounts.grant,
        summary="Grant a role", kind=BodyKind.SHAPE, body=api.RoleBody, answer=api.ChangeAnswer,
        statuses=(403, 404, 422), example={"role": "member", "queue": "default"},
    ),
    Route(
        method="DELETE", path="/v1/users/{user}/roles", tag="accounts", verb=Verb.ROLES_CHANGE, handler=accounts.revoke,
        summary="Revoke a role", query=api.RoleParameters, answer=api.ChangeAnswer,
        statuses=(403, 404, 409, 422),
    ),
    Route(
        method="GET", path="/v1/tokens", tag="accounts", verb=Verb.TOKENS_READ, handler=accounts.list_tokens,
        summary="Tokens of a user, without their values", query=api.TokensParameters, answer=api.TokenList,
        statuses=(404,),
    ),
    Route(
        method="POST", path="/v1/tokens", tag="accounts", verb=Verb.TOKENS_CHANGE, handler=accounts.make_token,
        summary="Create a token; its value is shown only once", kind=BodyKind.SHAPE, body=api.TokenBody,
        answer=api.TokenMade, status=201, statuses=(403, 404, 409, 422),
        example={"name": "ci", "scope": ["jobs.submit", "jobs.read"], "expires_in_ms": 86400000},
    ),
    Route(
        method="DELETE", path="/v1/tokens/{token}", tag="accounts", verb=Verb.TOKENS_CHANGE,
        handler=accounts.revoke_token, summary="Revoke a token", answer=api.ChangeAnswer, statuses=(403, 404),
    ),
    Route(
        method="GET", path="/v1/secrets", tag="accounts", verb=Verb.SECRETS_READ, handler=accounts.list_secrets,
        summary="Names of secrets; values are never returned", answer=api.SecretList,
    ),
    Route(
        method="PUT", path="/v1/secrets/{secret}", tag="accounts", verb=Verb.SECRETS_CHANGE,
        handler=accounts.set_secret, summary="Set a secret for jobs of a queue and its children",
        kind=BodyKind.SHAPE, body=api.SecretBody, query=api.SecretParameters, answer=api.ChangeAnswer,
        statuses=(403, 404, 422), example={"value": "..."},
    ),
    Route(
        method="DELETE", path="/v1/secrets/{secret}", tag="accounts", verb=Verb.SECRETS_CHANGE,
        handler=accounts.remove_secret, summary="Remove a secret", query=api.SecretParameters, answer=api.ChangeAnswer,
        statuses=(403, 404),
    ),
)  # fmt: skip

SIGN_IN = (
    Route(
        method="GET", path="/v1/sign-in", tag="accounts", access=RouteAccess.OPEN, handler=signing_in.ways_to_sign_in,
        summary="Identity providers and issuers with which one can sign in", answer=api.SignInView,
    ),
    Route(
        method="POST", path="/v1/sign-in/device", tag="accounts", access=RouteAccess.OPEN, kind=BodyKind.SHAPE,
        handler=signing_in.begin_device, status=201, statuses=(404, 429, 502), example={"provider": "company"},
        summary="Begin to sign in with an identity provider, on any device", body=api.DeviceBody, answer=api.DeviceView,
    ),
    Route(
        method="POST", path="/v1/sign-in/device/result", tag="accounts", access=RouteAccess.OPEN,
        handler=signing_in.device_result, summary="The token, once the user has signed in", kind=BodyKind.SHAPE,
        body=api.DeviceResultBody, answer=api.DeviceResult, statuses=(403, 422, 429, 502), example={"id": "..."},
    ),
    Route(
        method="POST", path="/v1/sign-in/browser", tag="accounts", access=RouteAccess.OPEN,
        handler=signing_in.begin_browser, summary="Begin to sign in with an identity provider, in this browser",
        kind=BodyKind.SHAPE, body=api.BrowserBody, example={"provider": "company"}, answer=api.BrowserView, status=201,
        statuses=(404, 422, 429, 502),
    ),
    Route(
        method="POST", path="/v1/sign-in/browser/result", tag="accounts", access=RouteAccess.OPEN,
        handler=signing_in.browser_result, summary="A session, once the provider has sent the user back",
        kind=BodyKind.SHAPE, body=api.BrowserResultBody, answer=api.SessionView, statuses=(403, 409, 422, 429, 502),
        example={"state": "...", "code": "..."},
    ),
    Route(
        method="POST", path="/v1/sign-in/refresh", tag="accounts", access=RouteAccess.OPEN, handler=signing_in.refresh,
        summary="Sign in again with a refresh token of the provider", kind=BodyKind.SHAPE, body=api.RefreshBody,
        answer=api.SignedInView, status=201, statuses=(403, 404, 422, 429, 502),
        example={"provider": "company", "refresh_token": "..."},
    ),
    Route(
        method="POST", path="/v1/sign-in/exchange", tag="accounts", access=RouteAccess.OPEN, kind=BodyKind.SHAPE,
        summary="Exchange a token of a CI system, of Kubernetes or of a service account for a token of Corral",
        handler=signing_in.exchange, body=api.ExchangeBody, example={"token": "eyJ..."}, answer=api.SignedInView,
        status=201, statuses=(403, 422, 429, 502),
    ),
    Route(
        method="POST", path="/v1/sign-out", tag="accounts", handler=signing_in.sign_out,
        summary="Revoke the token of this request", kind=BodyKind.SHAPE, body=api.SignOutBody, answer=api.ChangeAnswer,
        statuses=(404,), example={},
    ),
    Route(
        method="PUT", path="/v1/users/{user}/provider", tag="accounts", verb=Verb.USERS_CHANGE,
        handler=signing_in.link_user, summary="Let a user sign in with an identity provider", kind=BodyKind.SHAPE,
        body=api.LinkBody, answer=api.ChangeAnswer, statuses=(403, 404), example={"provider": "company"},
    ),
)  # fmt: skip

SERVER = (
    Route(
        method="GET", path="/v1/health", tag="server", access=RouteAccess.OPEN, handler=record.health,
        summary="Health of the server", answer=api.HealthView,
    ),
    Route(
        method="GET", path="/v1/metrics", tag="server", verb=Verb.METRICS_READ, access=RouteAccess.METRICS,
        handler=record.metrics, summary="Metrics for Prometheus", answer="text/plain", statuses=(403,),
    ),
)  # fmt: skip

ROUTES: tuple[Route, ...] = (
    *SUBMISSION,
    *LIVE,  # before JOBS, whose paths take any name
    *JOBS,
    *BATCH,
    *INTAKE,
    *RECORD,
    *CLUSTER,
    *FLEETS,
    *PEOPLE,
    *SIGN_IN,
    *SESSIONS,
    *AGENTS,
    *SERVER,
)
