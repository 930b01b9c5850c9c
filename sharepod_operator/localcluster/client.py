"""A small client for the local API server: JSON over HTTPS, one kept connection per thread, and no retries."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode, urlsplit

from sharepod_operator.localcluster.errors import ApiError, LocalClusterError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

Json = dict[str, Any]

MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"
FIELD_MANAGER: Final = "sharepod-localcluster"
_POLL: Final = 0.05
_IDLE: Final = 30.0
"""Seconds after which a kept connection isn't trusted any more: the API server closes those that were idle for 90."""


@dataclass(frozen=True, slots=True)
class Client:
    """Talks to the API server as one user. Safe to use from several threads.

    Paths are the API's own, such as `/api/v1/namespaces/default/pods`. Every method raises ApiError when the API server
    refuses and LocalClusterError when it can't be reached.
    """

    server: str
    certificate: Path
    token: str
    timeout: float = 30.0
    _local: threading.local = field(default_factory=threading.local, repr=False, compare=False)
    _connections: list[http.client.HTTPSConnection] = field(default_factory=list, repr=False, compare=False)

    def get(self, path: str, **query: str) -> Json:
        return self.request("GET", path, query=query)

    def list(self, path: str, **query: str) -> list[Json]:
        """The items of a collection, with `labelSelector=` or `fieldSelector=` where wanted."""
        items: list[Json] = self.request("GET", path, query=query)["items"]
        return items

    def create(self, path: str, body: Mapping[str, Any]) -> Json:
        return self.request("POST", path, body=body)

    def replace(self, path: str, body: Mapping[str, Any]) -> Json:
        return self.request("PUT", path, body=body)

    def patch(self, path: str, body: Any, content_type: str = MERGE_PATCH) -> Json:
        return self.request("PATCH", path, body=body, content_type=content_type)

    def delete(self, path: str, *, grace_seconds: int | None = None) -> Json:
        options: Json = {} if grace_seconds is None else {"gracePeriodSeconds": grace_seconds}
        return self.request("DELETE", path, body=options)

    def find(self, path: str) -> Json | None:
        """The object, or None when there is none."""
        try:
            return self.get(path)
        except ApiError as error:
            if error.code == http.client.NOT_FOUND:
                return None
            raise

    def apply(self, manifest: Mapping[str, Any]) -> Json:
        """Server-side apply of one object of any kind that the API server knows; namespace `default` if it names none."""
        return self.request(
            "PATCH",
            self.path_of(manifest),
            body=manifest,
            content_type=APPLY_PATCH,
            query={"fieldManager": FIELD_MANAGER, "force": "true"},
        )

    def path_of(self, manifest: Mapping[str, Any]) -> str:
        """Where an object lives, by asking the API server about its kind."""
        version, kind, metadata = manifest["apiVersion"], manifest["kind"], manifest["metadata"]
        prefix = f"/apis/{version}" if "/" in version else f"/api/{version}"
        for resource in self.get(prefix)["resources"]:
            if resource["kind"] == kind and "/" not in resource["name"]:
                scope = f"/namespaces/{metadata.get('namespace', 'default')}" if resource["namespaced"] else ""
                return f"{prefix}{scope}/{resource['name']}/{metadata['name']}"
        raise LocalClusterError(f"the API server knows no kind {kind} in {version}")

    def request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        content_type: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> Json:
        status, text = self.raw(method, path, body=body, content_type=content_type, query=query)
        try:
            answer = json.loads(text)
        except ValueError:
            answer = {}
        if status >= http.client.BAD_REQUEST:
            message = answer.get("message") or text.decode(errors="replace").strip() or f"HTTP {status}"
            raise ApiError(status, answer.get("reason", ""), message)
        return answer if isinstance(answer, dict) else {}

    def raw(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        content_type: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> tuple[int, bytes]:
        """Status and text of any answer, also of paths that don't speak JSON, such as `/readyz` or a pod's log."""
        target = f"{path}?{urlencode(query)}" if query else path
        headers = {"Authorization": f"Bearer {self.token}", "Accept": "application/json, */*"}
        payload = None if body is None else json.dumps(body)
        if payload is not None:
            headers["Content-Type"] = content_type
        connection = self._connection()
        try:
            connection.request(method, target, body=payload, headers=headers)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise LocalClusterError(f"{method} {self.server}{path}: {str(error) or type(error).__name__}") from error

    def is_ready(self) -> bool:
        """Whether the API server says that it is ready; False also when it can't be reached."""
        try:
            return self.raw("GET", "/readyz")[0] == http.client.OK
        except (LocalClusterError, OSError):
            return False

    def acting_as(self, token: str) -> Client:
        """A client of the same API server for somebody else."""
        return Client(self.server, self.certificate, token, self.timeout)

    def wait_gone(self, path: str, timeout: float = 30.0) -> None:
        """Waits until an object no longer exists."""
        deadline = time.monotonic() + timeout
        while self.find(path) is not None:
            if time.monotonic() > deadline:
                raise LocalClusterError(f"{path} is still there after {timeout:.0f} s")
            time.sleep(_POLL)

    def in_parallel(self, work: Callable[[Any], Any], items: Sequence[Any], threads: int = 8) -> None:
        """Does one thing with each item, several at a time; the first error is raised after all have ended."""
        if len(items) == 1:
            work(items[0])
            return
        with ThreadPoolExecutor(threads, thread_name_prefix="localcluster") as pool:
            for _ in pool.map(work, items):
                pass

    def close(self) -> None:
        """Closes the connections of all threads; they are opened again when needed."""
        for connection in self._connections:
            connection.close()

    def __del__(self) -> None:
        self.close()

    def _connection(self) -> http.client.HTTPSConnection:
        connection: http.client.HTTPSConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            url = urlsplit(self.server)
            context = ssl.create_default_context(cafile=str(self.certificate))
            host = url.hostname or "127.0.0.1"
            connection = http.client.HTTPSConnection(host, url.port, timeout=self.timeout, context=context)
            self._local.connection = connection
            self._connections.append(connection)
        elif time.monotonic() - self._local.used > _IDLE:
            connection.close()  # the next request opens it anew
        self._local.used = time.monotonic()
        return connection
