"""What a job that is waited for is doing, as one line for each change. Does not know sockets."""

from __future__ import annotations

import sys
from collections.abc import Callable

from corral.client.call import Talk
from corral.client.errors import ClientError
from corral.client.handles.requests import why_call
from corral.client.retry import Patient, answered
from corral.duration_text import without_spans
from corral.wire.api.jobs import JobView
from corral.wire.api.words import ENDED

#: True: lines on standard error; a function is called with each line.
Progress = bool | Callable[[str], None]


class ProgressLines:
    """Says a line when it differs from the last one."""

    def __init__(self, progress: Progress) -> None:
        self.is_wanted = progress is not False
        self._say = progress if callable(progress) else _to_standard_error
        self._last = ""

    def tell(self, client: Patient, view: JobView) -> Talk[None]:
        line = f"job {view.id} {'' if view.state in ENDED else 'is '}{view.state}"
        if view.state == "waiting":
            line += yield from _reason(client, view.id)
        elif view.state == "failed":
            line += f": {view.why or view.failure}"
        news = without_spans(line)
        if news != self._last:
            self._last = news
            self._say(line)


def _reason(client: Patient, job: str) -> Talk[str]:
    try:
        why = yield from answered(client, why_call(job))
    except ClientError:
        return ""  # it may have started meanwhile
    reasons = [reason.text for gang in why.gangs for reason in gang.reasons]
    return f": {reasons[0]}" if reasons else ""


def _to_standard_error(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
