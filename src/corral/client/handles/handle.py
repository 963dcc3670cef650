"""A job as an object: the answer of the server, with methods. Both clients share the descriptions of the methods.

A handle is the answer itself (``JobView`` or ``SubmitAnswer``), so that its fields are those of the API; it is not
updated by itself: ``refresh`` returns the job as it is now.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from msgspec import structs

from corral.client.call import ApiCall, Item, Series, Step, Talk, call, either, talk
from corral.client.follow import LogBytes, output_parts, waited
from corral.client.handles.progress import Progress
from corral.client.handles.requests import cancel_call, change_call, job_call, why_call
from corral.client.retry import Patient, RetryPolicy, answered
from corral.wire.api.jobs import BatchAnswer, ChangeAnswer, JobView, SubmitAnswer, WhyView

if TYPE_CHECKING:
    from corral.client.asynchronous import AsyncClient
    from corral.client.blocking import Client

P = ParamSpec("P")
T = TypeVar("T")
B = TypeVar("B")
A = TypeVar("A")

LINES = 10_000  # of the output that ``logs`` returns, unless another number is given


class JobMethods(Patient):
    """What can be asked about a job, and changed."""

    id: str

    @talk
    def wait(self, *, timeout_s: float | None = None, progress: Progress = False) -> Talk[JobView]:
        """Wait until the job has ended, and return it. Raises ``Timeout``. ``progress``: say what it does meanwhile.

        >>> print(client.submit({"command": "true"}).wait(timeout_s=60).state)
        succeeded
        """
        return (yield from waited(self, self.id, timeout_s, progress))

    @talk
    def logs(
        self,
        *,
        gang: str = "",
        task: int | None = None,
        rank: int | None = None,
        attempt: int = 0,
        stream: str = "",
        tail: int = LINES,
    ) -> Talk[str]:
        """The last ``tail`` lines of its output as text: both streams of all processes, in order of time; parameters as
        for ``Client.output``. If there are several processes, each line begins with the label of its own.

        >>> job = client.submit({"command": "echo hello; echo oops >&2"})
        >>> view = job.wait()
        >>> print(job.logs(), end="")
        hello
        oops
        """
        which = {"gang": gang, "task": task, "rank": rank, "attempt": attempt, "stream": stream}
        parts = yield from _collected(output_parts(self, self.id, which, tail))
        return "".join(map(_labelled, parts))

    @call
    def why(self) -> ApiCall[WhyView]:
        """Why it waits: all reasons, the jobs in the way, what would help, and the expected start."""
        return why_call(self.id)

    @call
    def cancel(self, *, now: bool = False) -> ApiCall[ChangeAnswer]:
        """Cancel it. ``now``: without grace."""
        return cancel_call(self.id, now)

    @call
    def hold(self) -> ApiCall[ChangeAnswer]:
        """Hold it: it does not start until it is released."""
        return change_call(self.id, "hold")

    @call
    def release(self) -> ApiCall[ChangeAnswer]:
        """Release it after a hold."""
        return change_call(self.id, "release")

    @call
    def requeue(self) -> ApiCall[ChangeAnswer]:
        """Stop it and requeue it."""
        return change_call(self.id, "requeue")

    @call
    def refresh(self) -> ApiCall[JobView]:
        """The job as it is now.

        >>> client.submit({"command": "true", "hold": True, "name": "later"}).refresh().held
        True
        """
        return job_call(self.id)


class BlockingMethods(JobMethods):
    """Of jobs that ``Client`` returns."""

    @property
    def client(self) -> Client:
        return self.__dict__["client"]  # type: ignore[no-any-return]

    @property
    def patience(self) -> RetryPolicy:  # type: ignore[override]
        return self.client.patience

    def converse(self, series: Series[T], /) -> Generator[T, None, None]:
        """See ``call``."""
        return self.client.converse(series)


class AwaitedMethods(JobMethods):
    """Of jobs that ``AsyncClient`` returns: coroutines."""

    @property
    def client(self) -> AsyncClient:
        return self.__dict__["client"]  # type: ignore[no-any-return]

    @property
    def patience(self) -> RetryPolicy:  # type: ignore[override]
        return self.client.patience

    def converse_later(self, series: Series[T], /) -> AsyncGenerator[T, None]:
        """See ``call``."""
        return self.client.converse_later(series)


class SubmittedJob(SubmitAnswer, BlockingMethods, frozen=True, dict=True, gc=True):
    """A job that was submitted."""


class AsyncSubmittedJob(SubmitAnswer, AwaitedMethods, frozen=True, dict=True, gc=True):
    """A job that was submitted with ``AsyncClient``."""


class SubmittedJobs(BatchAnswer, frozen=True):
    """Jobs that were submitted together."""

    jobs: tuple[SubmittedJob, ...]


class AsyncSubmittedJobs(BatchAnswer, frozen=True):
    """Jobs that were submitted together with ``AsyncClient``."""

    jobs: tuple[AsyncSubmittedJob, ...]


class JobHandle(JobView, BlockingMethods, frozen=True, dict=True, gc=True):
    """A job in full, as it was when it was asked for."""


class AsyncJobHandle(JobView, AwaitedMethods, frozen=True, dict=True, gc=True):
    """A job in full, from ``AsyncClient``."""


def giving(
    blocking: type[B], awaited: type[A]
) -> Callable[[Callable[Concatenate[Any, P], ApiCall[Any]]], either[P, B, A]]:
    """Turns one request into a method that returns a handle of the client's kind."""

    def decorate(describe: Callable[Concatenate[Any, P], ApiCall[Any]]) -> either[P, B, A]:
        return either(_handled(describe, blocking), _handled(describe, awaited))

    return decorate


def _handled(describe: Callable[Concatenate[Any, P], ApiCall[Any]], kind: type[T]) -> talk[P, T]:
    def conversation(client: Any, /, *args: P.args, **named: P.kwargs) -> Talk[T]:
        request: ApiCall[T] = structs.replace(describe(client, *args, **named), answer=kind)
        found = yield from answered(client, request)
        for each in (found, *getattr(found, "jobs", ())):
            if isinstance(each, JobMethods):
                each.__dict__["client"] = client
        return found

    conversation.__wrapped__ = describe  # type: ignore[attr-defined]
    conversation.__doc__ = describe.__doc__
    return talk(conversation, kind)


def _labelled(part: LogBytes) -> str:
    text = part.data.decode("utf-8", "replace")
    if not part.label:
        return text
    return "".join(f"[{part.label}] {line}" for line in text.splitlines(keepends=True))


def _collected(series: Series[T]) -> Talk[list[T]]:
    """All items of a series, as the result of one conversation."""
    found: list[T] = []
    answer: Any = None
    failed: BaseException | None = None
    while True:
        try:
            step: Step | Item[T] = series.send(answer) if failed is None else series.throw(failed)
        except StopIteration:
            return found
        answer, failed = None, None
        if isinstance(step, Item):
            found.append(step.value)
            continue
        try:
            answer = yield step
        except Exception as error:
            failed = error
