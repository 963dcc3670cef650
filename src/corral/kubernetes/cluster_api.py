"""Requests to the API server of a Kubernetes cluster: JSON documents in and out, by path.

lightkube finds the server and the credentials (a kubeconfig, or the service account of a pod) and keeps tokens that
rotate; it is imported when a connection is made, so that a server without the extra starts and says what is missing.
Knows how requests fail and when to try again, not what any object means. Every request may be repeated: a caller
that creates something names it, and learns from 409 that it exists already.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from corral.io.backoff import Backoff

if TYPE_CHECKING:
    import httpx2

MERGE, JSON_PATCH = "application/merge-patch+json", "application/json-patch+json"
REQUEST_S = 10.0  # one try
PATIENCE_S = 30.0  # all tries of one request
_RETRY_AFTER_S_MAX = 60.0
_AGAIN = frozenset((429, 500, 502, 503, 504))
_TEXT_MAX = 500
#: JSON as it comes; what is read from it is checked where it is used.
Document = dict[str, Any]


class MissingClient(Exception):
    """The client library is not installed."""

    def __init__(self) -> None:
        super().__init__(
            "Kubernetes needs its client, which is not installed: pip install 'corral-scheduler[kubernetes]'"
        )


class NoCluster(Exception):
    """There is no usable description of a cluster. Says which one was looked for."""


class ApiRefused(Exception):
    """The API server answered with an error. ``retry_after_s``: when it wants to be asked again; 0: it did not say."""

    def __init__(self, status: int, reason: str, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(f"{status} {reason}: {message}" if reason else f"{status}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after_s = retry_after_s


class ApiUnreachable(Exception):
    """No answer: the request may have had its effect or not."""


class Stopped(Exception):
    """The connection was closed while a request waited for its next try."""


def connect(kubeconfig: str = "", context: str = "") -> ClusterApi:
    """Connect as a kubeconfig says, or, without one, as the service account of this pod, ``$KUBECONFIG`` or
    ``~/.kube/config``, whichever is there first. Raises `MissingClient` or `NoCluster`."""
    try:
        import httpx2
        from lightkube.config.client_adapter import Client, ConnectionParams
        from lightkube.config.kubeconfig import KubeConfig
    except ImportError:
        raise MissingClient from None
    try:
        found = KubeConfig.from_file(kubeconfig) if kubeconfig else KubeConfig.from_env()
        config = found.get(context or None)
        assert config is not None, "the default raises"
        # Proxies and certificates of the environment are those of a person's shell, not of a server.
        http = Client(config, ConnectionParams(timeout=httpx2.Timeout(REQUEST_S), trust_env=False))
    except Exception as wrong:  # whatever the library makes of a file that is no kubeconfig
        place = kubeconfig or "the service account of this pod, $KUBECONFIG and ~/.kube/config"
        why = " ".join(str(wrong).split()) or type(wrong).__name__
        raise NoCluster(f"no Kubernetes cluster is described by {place}: {why}") from None
    return ClusterApi(http, config.namespace or "default")


class ClusterApi:
    """One connection pool, used by any number of threads. ``namespace``: the one that the credentials name."""

    def __init__(self, http: httpx2.Client, namespace: str) -> None:
        self._http = http
        self.namespace = namespace
        self._closed = threading.Event()
        self._calm_lock = threading.Lock()
        self._calm_until = 0.0  # an answer of 429 holds for all threads
        #: How many requests were answered, by method and status; for tests, benchmarks and metrics.
        self.answers: dict[tuple[str, int], int] = {}

    def get(self, path: str, params: Mapping[str, str] | None = None, patience_s: float = PATIENCE_S) -> Document:
        return self.request("GET", path, params=params, patience_s=patience_s)

    def create(
        self, path: str, body: Document, params: Mapping[str, str] | None = None, patience_s: float = PATIENCE_S
    ) -> Document:
        """A name that exists is refused with 409. After a lost answer that may be what this call itself has created."""
        return self.request("POST", path, body, params=params, patience_s=patience_s)

    def replace(self, path: str, body: Document, patience_s: float = PATIENCE_S) -> Document:
        return self.request("PUT", path, body, patience_s=patience_s)

    def patch(self, path: str, body: object, kind: str = MERGE, patience_s: float = PATIENCE_S) -> Document:
        return self.request("PATCH", path, body, content_type=kind, patience_s=patience_s)

    def delete(
        self, path: str, *, uid: str = "", grace_s: int | None = None, propagation: str = "",
        patience_s: float = PATIENCE_S,
    ) -> Document:  # fmt: skip
        """``uid``: only this very object. What is not there is as good as deleted: returns an empty document."""
        body: Document = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if uid:
            body["preconditions"] = {"uid": uid}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        if propagation:
            body["propagationPolicy"] = propagation
        try:
            return self.request("DELETE", path, body, patience_s=patience_s)
        except ApiRefused as refused:
            if refused.status == 404 or (uid and refused.status == 409):
                return {}
            raise

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        params: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        patience_s: float = PATIENCE_S,
    ) -> Document:
        """One request, repeated while the server cannot be reached or is overloaded. Raises `ApiRefused`, or
        `ApiUnreachable` when the time is over."""
        answer = msgspec.json.decode(self.read(method, path, body, params, content_type, patience_s) or b"{}")
        return answer if isinstance(answer, dict) else {}

    def read(
        self, method: str, path: str, body: object = None, params: Mapping[str, str] | None = None,
        content_type: str = "application/json", patience_s: float = PATIENCE_S,
    ) -> bytes:  # fmt: skip
        """The same, with the body as it comes: logs are no JSON."""
        content = None if body is None else msgspec.json.encode(body)
        headers = {"Accept": "application/json"} | ({} if content is None else {"Content-Type": content_type})
        end, backoff = time.monotonic() + patience_s, Backoff(0.1, 5.0)
        while True:
            self._stay_calm()
            try:
                return self._once(method, path, content, params, headers)
            except ApiRefused as refused:
                if refused.status not in _AGAIN:
                    raise
                wait_s = max(backoff.failed(), refused.retry_after_s)
                if refused.status == 429:
                    self._be_calm(refused.retry_after_s)
                if time.monotonic() + wait_s > end:
                    raise
            except ApiUnreachable:
                wait_s = backoff.failed()
                if time.monotonic() + wait_s > end:
                    raise
            if self._closed.wait(wait_s):
                raise Stopped

    def _once(
        self, method: str, path: str, content: bytes | None, params: Mapping[str, str] | None, headers: dict[str, str]
    ) -> bytes:
        import httpx2

        if self._closed.is_set():
            raise Stopped
        try:
            response = self._http.request(method, path, content=content, params=params, headers=headers)
        except (httpx2.HTTPError, OSError, RuntimeError) as wrong:  # RuntimeError: the client has been closed
            if self._closed.is_set():
                raise Stopped from None
            raise ApiUnreachable(f"{method} {path}: {type(wrong).__name__} {wrong}") from None
        self._count(method, response.status_code)
        if response.status_code >= 400:
            raise _refusal(response.status_code, response.content, response.headers.get("Retry-After", ""))
        return response.content

    @contextmanager
    def stream(self, path: str, params: Mapping[str, str], silence_s: float) -> Iterator[LineStream]:
        """Read an answer that does not end by itself. Raises `ApiRefused` or `ApiUnreachable`; a stream that brings
        nothing for ``silence_s`` is unreachable."""
        import httpx2

        if self._closed.is_set():
            raise Stopped
        timeout = httpx2.Timeout(REQUEST_S, read=silence_s)
        try:
            with self._http.stream("GET", path, params=params, timeout=timeout) as response:
                self._count("WATCH", response.status_code)
                if response.status_code >= 400:
                    retry_after = response.headers.get("Retry-After", "")
                    raise _refusal(response.status_code, response.read(), retry_after)
                yield LineStream(response)
        except (httpx2.HTTPError, httpx2.StreamError, OSError) as wrong:
            if self._closed.is_set():
                raise Stopped from None
            raise ApiUnreachable(f"GET {path}: {type(wrong).__name__} {wrong}") from None

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set()

    def close(self) -> None:
        """Give up all that waits. Streams are interrupted by their readers."""
        self._closed.set()
        self._http.close()

    def _stay_calm(self) -> None:
        """Wait as long as the last answer of 429 asks for, also for a request that is tried only once."""
        with self._calm_lock:
            wait_s = self._calm_until - time.monotonic()
        if wait_s > 0 and self._closed.wait(wait_s):
            raise Stopped

    def _be_calm(self, retry_after_s: float) -> None:
        with self._calm_lock:
            self._calm_until = max(self._calm_until, time.monotonic() + retry_after_s)

    def _count(self, method: str, status: int) -> None:
        with self._calm_lock:
            self.answers[method, status] = self.answers.get((method, status), 0) + 1


class LineStream:
    """Lines, or bytes, of an answer as they arrive. Another thread may interrupt the reader."""

    def __init__(self, response: httpx2.Response) -> None:
        self._response = response

    def lines(self) -> Iterator[str]:
        return self._response.iter_lines()

    def chunks(self) -> Iterator[bytes]:
        return self._response.iter_bytes()

    def interrupt(self) -> None:
        """End a blocked read. Closing would not: the reader waits in the kernel."""
        import socket

        connection = self._response.extensions.get("network_stream")
        to = connection.get_extra_info("socket") if connection is not None else None
        if to is not None:
            with suppress(OSError):
                to.shutdown(socket.SHUT_RDWR)


def object_path(kind_path: str, namespace: str = "", name: str = "", part: str = "") -> str:
    """``kind_path`` is ``api/v1/pods`` or ``apis/batch/v1/jobs``: group and version, then the plural."""
    prefix, _, plural = kind_path.rpartition("/")
    where = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
    return f"/{prefix}{where}/{plural}" + (f"/{quote(name, safe='')}" if name else "") + (f"/{part}" if part else "")


def _refusal(status: int, content: bytes, retry_after: str) -> ApiRefused:
    """The error, in the server's own words where it sent a Status."""
    reason = message = ""
    retry_after_s = float(retry_after) if retry_after.isdigit() else 0.0
    try:
        found = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        message = content[:_TEXT_MAX].decode("utf-8", "replace")
    else:
        if isinstance(found, dict):
            reason, message = str(found.get("reason") or ""), str(found.get("message") or "")[:_TEXT_MAX]
            details = found.get("details")
            told = details.get("retryAfterSeconds") if isinstance(details, dict) else None
            if isinstance(told, int) and not isinstance(told, bool):
                retry_after_s = max(retry_after_s, float(told))
    return ApiRefused(status, reason, message, min(retry_after_s, _RETRY_AFTER_S_MAX))
