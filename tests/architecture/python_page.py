"""docs/python.md, made from the signatures and docstrings of the clients."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

from corral.client import AsyncClient, Client, errors
from corral.client.accounts import AccountCalls
from corral.client.cluster import ClusterCalls
from corral.client.fleets import FleetCalls
from corral.client.follow import FollowCalls
from corral.client.handles.handle import BlockingMethods, JobMethods
from corral.client.jobs import JobCalls

GROUPS = (JobCalls, FollowCalls, ClusterCalls, FleetCalls, AccountCalls)
ERRORS = (
    errors.ClientError,
    errors.BadCredentials,
    errors.Unreachable,
    errors.Timeout,
    errors.Problem,
    errors.NotFound,
)
HEAD = """# The Python client

Made from the signatures and docstrings in `corral.client`; `make accept` writes it again. The examples are run by a
test. To learn it step by step, read [the tutorial](python-tutorial.md). A training script needs another module:
[`corral_training`](preemption.md#a-loop-that-loses-nothing).

`AsyncClient` has the same methods as coroutines, and `async for` where `Client` has `for`. Both are typed. Ids of
jobs are numbers or text. Answers are objects with the fields of [the REST API](api.md); notebooks show them as
tables.

"""


def python_page() -> str:
    return HEAD + "\n".join([*_constructors(), *_calls(), *_handles(), *_errors()])


def _constructors() -> Iterator[str]:
    yield f"## `Client`\n\n```\nClient{_parameters(Client.__init__)}\n```\n\n{_prose(Client)}\n"
    yield f"## `AsyncClient`\n\nParameters as for `Client`. {_prose(AsyncClient)}\n"


def _calls() -> Iterator[str]:
    for group in GROUPS:
        yield f"## {inspect.getdoc(group)}\n"
        for name in vars(group):
            if not name.startswith("_"):
                yield _method(getattr(Client, name))


def _handles() -> Iterator[str]:
    yield (
        "## Jobs as objects\n\n`submit` returns a `SubmittedJob`, `job` a `JobHandle`: the answer of the server with "
        "these methods. Those of `AsyncClient` are coroutines.\n"
    )
    for name in vars(JobMethods):
        if not name.startswith("_"):
            yield _method(getattr(BlockingMethods, name))


def _errors() -> Iterator[str]:
    rows = "\n".join(f"| `{each.__name__}` | {_prose(each)} |" for each in ERRORS)
    yield f"## Errors\n\nAll are in `corral.client`.\n\n| error | when |\n|---|---|\n{rows}\n"


def _method(method: object) -> str:
    name = method.__name__  # type: ignore[attr-defined]
    return f"### `{name}`\n\n```\n{name}{_parameters(method)}\n```\n\n{_prose(method)}\n"


def _parameters(method: object) -> str:
    signature = inspect.signature(method)  # type: ignore[arg-type]
    parts = [each for each in signature.parameters.values() if each.name != "self"]
    text = re.sub(r"(: |-> )'([^']+)'", r"\1\2", str(signature.replace(parameters=parts))).replace(" -> None", "")
    return (
        text if len(text) < 110 else text.replace("(", "(\n    ", 1).replace(", ", ",\n    ").replace(") ->", ",\n) ->")
    )


def _prose(documented: object) -> str:
    """The docstring as Markdown; examples become blocks."""
    text = inspect.getdoc(documented) or ""
    text = re.sub(r"``([^`]+)``", r"`\1`", text)
    return re.sub(r"(?:^|\n\n)(>>> .*)", r"\n\n```python\n\1\n```", text, flags=re.DOTALL)
