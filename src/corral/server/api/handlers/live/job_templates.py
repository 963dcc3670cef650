"""Templates of jobs: job files to begin with, of the site and of each user. A template is a text; it is checked when it
is used."""

from __future__ import annotations

from corral.core.accounts.template_commands import remove_template, set_template
from corral.server.api.http.problems import forbidden, not_found
from corral.server.api.http.request import ApiRequest, Reply
from corral.server.auth import Verb
from corral.wire.api import TemplateList, TemplateView


async def list_templates(request: ApiRequest) -> Reply:
    _check_submits(request)
    known = request.service.accounts.templates.values()
    shown = sorted((each for each in known if each.user in ("", request.user)), key=lambda each: (each.user, each.name))
    return TemplateList(
        templates=tuple(
            TemplateView(name=each.name, site=not each.user, text=each.text, set_ms=each.set_ms) for each in shown
        )
    )


async def put_template(request: ApiRequest) -> Reply:
    name, text = request.path["template"], request.body.text
    user = _owner(request)
    return await request.change_accounts(lambda accounts, now_ms: set_template(accounts, name, user, text, now_ms))


async def drop_template(request: ApiRequest) -> Reply:
    name, user = request.path["template"], _owner(request)
    if (user, name) not in request.service.accounts.templates:
        raise not_found("template", name)
    return await request.change_accounts(lambda accounts, now_ms: remove_template(accounts, name, user, now_ms))


def _owner(request: ApiRequest) -> str:
    """Whose template is changed; "" for one of the site, which only those change who are responsible for all queues."""
    _check_submits(request)
    if request.query.site and not request.may(Verb.JOBS_UNBOUNDED):
        raise forbidden(Verb.JOBS_UNBOUNDED)
    return "" if request.query.site else request.user


def _check_submits(request: ApiRequest) -> None:
    if not request.may_somewhere(Verb.JOBS_SUBMIT):
        raise forbidden(Verb.JOBS_SUBMIT)
