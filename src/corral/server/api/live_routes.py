"""A part of the table in ``routes``: what pages that stay open are drawn from, templates, and sessions of browsers."""

from __future__ import annotations

from corral.server.api.handlers.live import (
    figures,
    job_document,
    job_templates,
    live_page,
    name_search,
    past_attempts,
    service_order,
    usage_parts,
)
from corral.server.api.http.route import BodyKind, Route, RouteAccess
from corral.server.api.ui import sessions
from corral.server.auth import Verb
from corral.wire import api

TEMPLATES = (
    Route(
        method="GET", path="/v1/templates", tag="jobs", verb=Verb.JOBS_SUBMIT, handler=job_templates.list_templates,
        summary="Job files to begin with, of the site and of the user", answer=api.TemplateList, statuses=(403,),
    ),
    Route(
        method="PUT", path="/v1/templates/{template}", tag="jobs", verb=Verb.JOBS_SUBMIT,
        handler=job_templates.put_template, summary="Store a job file to begin with, or replace it",
        kind=BodyKind.SHAPE, body=api.TemplateBody, query=api.TemplateParameters, answer=api.ChangeAnswer,
        statuses=(403, 409, 422), example={"text": "command: python train.py\ngpus: 8\n"},
    ),
    Route(
        method="DELETE", path="/v1/templates/{template}", tag="jobs", verb=Verb.JOBS_SUBMIT,
        handler=job_templates.drop_template, summary="Remove a template", query=api.TemplateParameters,
        answer=api.ChangeAnswer, statuses=(403, 404),
    ),
)  # fmt: skip

LIVE = (
    *TEMPLATES,
    Route(
        method="GET", path="/v1/live", tag="cluster", verb=Verb.NODES_READ, handler=live_page.live,
        summary="The cluster at a glance, and its changes",
        about="JSON; or, with follow=true or Accept: text/event-stream, server-sent events: `me` (WhoAmI), `view` "
        "(LiveView), then `change` (LiveChange) a few times a second at most. After a reconnection everything is sent "
        "again.",
        query=api.LiveParameters, answer=api.LiveView, also=(live_page.KIND,), item=api.LiveChange, statuses=(403,),
    ),
    Route(
        method="GET", path="/v1/topology", tag="cluster", verb=Verb.NODES_READ, handler=live_page.topology,
        summary="All nodes where they are in the topology, with the state and figures of each GPU",
        answer=api.TopologyView, statuses=(403,),
    ),
    Route(
        method="GET", path="/v1/line", tag="cluster", verb=Verb.JOBS_READ, handler=service_order.line,
        summary="Waiting gangs in the order in which they are served", query=api.LineParameters, answer=api.LineView,
    ),
    Route(
        method="GET", path="/v1/search", tag="cluster", verb=Verb.JOBS_READ, handler=name_search.search,
        summary="Find jobs, nodes, queues and users by a part of their name", query=api.SearchParameters,
        answer=api.SearchView,
    ),
    Route(
        method="GET", path="/v1/series", tag="record", verb=Verb.NODES_READ, handler=figures.series,
        summary="Figures over time: of the cluster, of queues, nodes and jobs",
        about="10 seconds apart for up to 2 hours, 5 minutes for up to 3 days, an hour for up to a year. Names: "
        "cluster/ with gpus, gpus_used, gangs_waiting, gpus_waiting, utilisation, and counts of each point: starts, "
        "succeeded, failed, lost_gpu_ms; queue/NAME/ with gpus_used, gpus_waiting; node/NAME/ with cpu, memory_mib, "
        "gpuN/utilisation, gpuN/temperature; job/NUMBER/ with utilisation, gpu_memory_mib, power_w, cpu, memory_mib, "
        "step, step_ms, metric/NAME. What you may not see is left out.",
        query=api.SeriesParameters, answer=api.SeriesView,
    ),
    Route(
        method="GET", path="/v1/attempts", tag="jobs", verb=Verb.JOBS_READ, handler=past_attempts.attempts,
        summary="Attempts of all jobs in a time, and reserved starts", query=api.AttemptsParameters,
        answer=api.AttemptList,
    ),
    Route(
        method="GET", path="/v1/usage/parts", tag="record", verb=Verb.USAGE_READ, handler=usage_parts.usage_parts,
        summary="GPU time by model, with its cost at the prices of the site, and lost work by cause",
        query=api.UsageParameters, answer=api.UsageParts,
    ),
    Route(
        method="POST", path="/v1/jobs/check", tag="jobs", verb=Verb.JOBS_SUBMIT, handler=job_document.check_document,
        summary="Check a job file: all errors, with line and column",
        about="Nothing is submitted. What only the cluster knows, such as its queues, is checked by a dry run.",
        kind=BodyKind.SHAPE, body=api.DocumentText, answer=api.DocumentCheck, statuses=(422,),
        example={"text": "command: python train.py\ngpus: 2\n"},
    ),
    Route(
        method="GET", path="/v1/jobs/{job}/document", tag="jobs", verb=Verb.JOBS_READ,
        handler=job_document.show_document, summary="The document of a job, to be submitted again",
        answer=api.DocumentOfJob, statuses=(404,),
    ),
)  # fmt: skip

SESSIONS = (
    Route(
        method="POST", path="/v1/session", tag="sessions", access=RouteAccess.SIGN_IN, handler=sessions.sign_in,
        summary="Sign in with a browser: exchange a token, or a code for one use, for a session",
        about="The session is in a cookie. It has the rights of the token, ends with it at the latest, and is listed "
        "and revoked like a token.",
        kind=BodyKind.SHAPE, body=api.SessionBody, answer=api.SessionView, statuses=(401, 403, 409, 422, 429),
        example={"token": "corral_..."},
    ),
    Route(
        method="GET", path="/v1/session", tag="sessions", handler=sessions.show_session,
        summary="The session of the cookie, with the value that changes must send", answer=api.SessionView,
        statuses=(404,),
    ),
    Route(
        method="DELETE", path="/v1/session", tag="sessions", handler=sessions.sign_out, summary="Sign out",
        answer=api.ChangeAnswer, statuses=(403, 404),
    ),
    Route(
        method="POST", path="/v1/session-codes", tag="sessions", verb=Verb.TOKENS_CHANGE, handler=sessions.make_code,
        summary="Create a code with which you can sign in once, within a minute", answer=api.SessionCode, status=201,
        statuses=(403, 429),
    ),
)  # fmt: skip
