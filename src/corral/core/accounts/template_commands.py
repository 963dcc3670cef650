"""Commands on templates of jobs: names and sizes are bounded. Rights, and whether a text is a job file, are not decided
here."""

from __future__ import annotations

from corral.core.accounts import accounts as a
from corral.core.accounts.accounts import AccountEvent, Accounts
from corral.core.accounts.commands import SECRET
from corral.core.intake.refusal import Refusal

TEXT_MAX = 16_384  # characters
TEMPLATES_MAX = 100  # of one user, and of the site


def set_template(accounts: Accounts, name: str, user: str, text: str, now_ms: int) -> list[AccountEvent] | Refusal:
    """Store a template, or replace it. ``user``: whose it is; empty: that of the site."""
    if not SECRET.fullmatch(name):
        hint = "use up to 64 letters, digits and . _ -; begin with a letter or digit"
        return Refusal("bad_name", f"{name!r} is not a valid name of a template", hint, "name")
    if not text.strip() or len(text) > TEXT_MAX or "\0" in text:
        why = "the template is empty" if not text.strip() else f"the template has more than {TEXT_MAX} characters"
        return Refusal("bad_template", why, "give a job file, in YAML", "text")
    count = sum(owner == user for owner, _ in accounts.templates)
    if count >= TEMPLATES_MAX and (user, name) not in accounts.templates:
        why = f"there are {count} templates, the most that are kept"
        return Refusal("too_many_templates", why, "remove one: corral template remove NAME")
    return [a.TemplateSet(now_ms, name, user, text)]


def remove_template(accounts: Accounts, name: str, user: str, now_ms: int) -> list[AccountEvent] | Refusal:
    if (user, name) not in accounts.templates:
        return Refusal("no_such_template", f"there is no template {name!r}", "list them: corral template list")
    return [a.TemplateRemoved(now_ms, name, user)]
