"""The objects of one kind, kept by one list and then by a watch that is resumed where it ended.

Knows resource versions, bookmarks and the ways in which a watch ends, not what the objects are. A watch that breaks is
resumed at the last version seen; where that version is no longer kept (410 Gone), everything is listed again. A
listener misses nothing: changes during a break appear as the difference between two lists.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec
import structlog

from corral.io.backoff import Backoff
from corral.kubernetes.cluster_api import ApiRefused, ApiUnreachable, ClusterApi, Document, LineStream, Stopped

PAGE = 500
WATCH_S = 60  # the server ends a watch after that; a connection that is cut silently is noticed a little later
_SILENCE_S = 15.0  # more than that
_GONE = 410


class NotTaken(Exception):
    """The listener could not process an object."""


log = structlog.get_logger(__name__)


class ObjectListener(Protocol):
    """Called by one thread. What it raises is logged, and the objects are listed again."""

    def listed(self, objects: Sequence[Document]) -> None:
        """All objects that there are. Those known before and missing here have gone."""

    def changed(self, found: Document) -> None:
        """Added or modified."""

    def removed(self, last: Document) -> None:
        """Deleted, with its last content."""


class ListWatch:
    """``path``: of the collection. ``params``: selectors. Runs in a thread of its own from `start` to `stop`."""

    def __init__(
        self, api: ClusterApi, path: str, listener: ObjectListener, params: Mapping[str, str] | None = None,
        *, watch_s: int = WATCH_S, on_contact: Callable[[bool], None] | None = None,
    ) -> None:  # fmt: skip
        self._api = api
        self._path = path
        self._listener = listener
        self._params = dict(params or {})
        self._watch_s = watch_s
        self._on_contact = on_contact
        self._stop = threading.Event()
        self._synced = threading.Event()
        self._lock = threading.Lock()
        self._stream: LineStream | None = None
        self._thread: threading.Thread | None = None
        self._version = ""  # empty: list
        self._contact_at = 0.0
        #: How often everything was listed, watched, and found to be gone.
        self.lists = self.watches = self.gone = 0
        self.last_error = ""

    def start(self) -> None:
        name = f"watch {self._path.rpartition('/')[2]}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        with self._lock:
            if self._stream is not None:
                self._stream.interrupt()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def wait_synced(self, patience_s: float) -> bool:
        """Whether the first list has arrived."""
        return self._synced.wait(patience_s)

    def age_s(self) -> float:
        """How long ago the server last answered. Infinite: never."""
        return time.monotonic() - self._contact_at if self._contact_at else float("inf")

    def _run(self) -> None:
        backoff = Backoff(0.2, 10.0)
        while not self._stop.is_set():
            try:
                if not self._version:
                    self._list()
                self._watch()
                backoff.succeeded()
            except Stopped:
                return
            except ApiRefused as refused:
                if refused.status == _GONE:
                    self.gone += 1
                    self._version = ""
                    continue
                self._lost(str(refused), max(backoff.failed(), refused.retry_after_s))
            except ApiUnreachable as unreachable:
                # A watch that brought something was a good one: what broke it is no reason to wait longer.
                if self.age_s() < self._watch_s:
                    backoff.succeeded()
                self._lost(str(unreachable), backoff.failed())
            except Exception:
                if self._api.is_closed:
                    return
                log.exception("objects of Kubernetes could not be taken over; listing them again", path=self._path)
                self._version = ""
                self._stop.wait(backoff.failed())

    def _list(self) -> None:
        objects: list[Document] = []
        params = {**self._params, "limit": str(PAGE)}
        while True:
            page = self._api.get(self._path, params, patience_s=0.0)
            objects += page.get("items") or ()
            meta = page.get("metadata") or {}
            if not meta.get("continue"):
                break
            params["continue"] = meta["continue"]
        self.lists += 1
        self._heard()
        self._listener.listed(objects)
        self._version = str(meta.get("resourceVersion") or "")
        self._synced.set()

    def _watch(self) -> None:
        # Not all watches of a server end at the same time.
        seconds = max(1, int(self._watch_s * random.uniform(0.75, 1.0)))
        params = {
            **self._params, "watch": "true", "allowWatchBookmarks": "true", "resourceVersion": self._version,
            "timeoutSeconds": str(seconds),
        }  # fmt: skip
        with self._api.stream(self._path, params, seconds + _SILENCE_S) as stream:
            self.watches += 1
            with self._lock:
                self._stream = stream
            try:
                if self._stop.is_set():  # by a caller that saw no stream to interrupt
                    raise Stopped
                self._heard()
                for line in stream.lines():
                    if self._stop.is_set():
                        raise Stopped
                    if line:
                        self._take(msgspec.json.decode(line))
            except msgspec.DecodeError:
                raise ApiUnreachable(f"{self._path}: the watch was cut within an event") from None
            finally:
                with self._lock:
                    self._stream = None
        self._heard()

    def _take(self, event: Document) -> None:
        kind, found = event.get("type"), event.get("object") or {}
        if kind == "ERROR":
            raise ApiRefused(int(found.get("code") or 500), str(found.get("reason")), str(found.get("message")))
        self._heard()
        try:
            if kind in ("ADDED", "MODIFIED"):
                self._listener.changed(found)
            elif kind == "DELETED":
                self._listener.removed(found)
        except Exception as wrong:
            raise NotTaken from wrong
        # After the listener has it: what it could not take is not skipped.
        self._version = str((found.get("metadata") or {}).get("resourceVersion") or self._version)

    def _heard(self) -> None:
        self._contact_at = time.monotonic()
        if self._on_contact is not None:
            self._on_contact(True)

    def _lost(self, why: str, wait_s: float) -> None:
        if why != self.last_error:
            log.warning("a watch of Kubernetes has broken", path=self._path, why=why, again_in_s=round(wait_s, 1))
        self.last_error = why
        if self._on_contact is not None:
            self._on_contact(False)
        self._stop.wait(wait_s)
