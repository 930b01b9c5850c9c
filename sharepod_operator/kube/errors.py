"""What the API server, or the way to it, can answer instead of an object.

The one question that a caller has after a failed write is whether it happened. `definite` answers it: a definite
refusal changed nothing and the caller may forget what it assumed; after an `UnknownOutcome` the write may have been
applied, and only a GET (or the watch) tells.
"""

# ruff: noqa: N818  # named as Kubernetes names its reasons
from __future__ import annotations

from typing import Any, ClassVar

MESSAGE_LIMIT = 500
"""Characters of a server's message that are kept: an Invalid answer may repeat a whole podSpec."""


def bounded(text: str, limit: int = MESSAGE_LIMIT) -> str:
    """The text on one line and at most `limit` characters long; a cut one ends in an ellipsis."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


class ApiError(Exception):
    """An answer that is no success. Plain instances carry a status that no subclass stands for; nothing was written.

    Attributes:
        status: HTTP status, 0 where no answer came.
        reason: Kubernetes' one-word reason (`AlreadyExists`, `Expired`, ...), empty where the server gave none.
        message: one bounded line for people.
        details: the `details` of the server's Status, as it came.
    """

    definite: ClassVar[bool] = True
    """Whether the write surely did not happen."""

    def __init__(
        self, message: str, *, status: int = 0, reason: str = "", details: dict[str, Any] | None = None
    ) -> None:
        self.status = status
        self.reason = reason
        self.message = bounded(message)
        self.details: dict[str, Any] = details or {}
        super().__init__(self.message)

    @property
    def field_causes(self) -> tuple[str, ...]:
        """The server's causes as `field: message` lines, bounded; empty where it named no field, as for a policy's refusal."""
        causes = [cause for cause in self.details.get("causes") or () if cause.get("field")]
        return tuple(bounded(f"{cause['field']}: {cause.get('message', '')}") for cause in causes[:10])


class NotFound(ApiError):
    """404, a definite refusal: no such object (then `details` names it), or no such resource type on this server."""


class Conflict(ApiError):
    """409, a definite refusal: the resourceVersion or uid precondition does not hold, or the state forbids the write."""


class AlreadyExists(ApiError):
    """409 with reason AlreadyExists, a definite refusal: an object of this name is there, perhaps by our own earlier write."""


class Invalid(ApiError):
    """400, 413, 415 or 422, a definite refusal: the request itself is wrong, and repeating it can't help."""


class Unauthorized(ApiError):
    """401, a definite refusal: credentials are missing or no longer valid, also after they were renewed once."""


class Forbidden(ApiError):
    """403, a definite refusal: RBAC or an admission policy says no."""


class Gone(ApiError):
    """410, a definite refusal: the resourceVersion or continue token is too old; list again."""


class TooManyRequests(ApiError):
    """429, a definite refusal: the server asks for patience, and the retries allowed here are used up."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 429,
        reason: str = "TooManyRequests",
        details: dict[str, Any] | None = None,
        retry_after: float = 1.0,
    ) -> None:
        super().__init__(message, status=status, reason=reason, details=details)
        self.retry_after = retry_after
        """Seconds the server wants us to wait."""


class Unreachable(ApiError):
    """No connection came about, or a read got no answer. For writes a definite refusal: nothing was sent."""


class ServerError(ApiError):
    """5xx in answer to a read, after the retries. (In answer to a write it is an `UnknownOutcome`.)"""


class UnknownOutcome(ApiError):
    """A write was sent and its fate is unknown: timeout, reset, or 5xx. Neither a yes nor a no; only a GET decides."""

    definite: ClassVar[bool] = False


class NotLeading(ApiError):
    """The write was refused on this side, a definite refusal: this process does not lead (any more); nothing was sent."""


class AuthError(Exception):
    """No usable credentials: says in one line where they were looked for and what would be right."""


_BY_STATUS: dict[int, type[ApiError]] = {
    400: Invalid,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    413: Invalid,
    415: Invalid,
    422: Invalid,
}


def error_of(
    status: int, body: dict[str, Any] | str, *, writing: bool = False, retry_after: float | None = None
) -> ApiError:
    """The error for an HTTP status and the server's Status object (or plain text); 5xx depends on `writing`."""
    if isinstance(body, dict):
        message, reason, details = body.get("message") or "", body.get("reason") or "", body.get("details") or {}
    else:
        message, reason, details = body, "", {}
    message = message or f"the API server answered {status}"
    if status == 429:
        wait = retry_after if retry_after is not None else float(details.get("retryAfterSeconds") or 1)
        return TooManyRequests(message, reason=reason or "TooManyRequests", details=details, retry_after=wait)
    if status == 409 and reason == "AlreadyExists":
        return AlreadyExists(message, status=status, reason=reason, details=details)
    if status >= 500:
        kind: type[ApiError] = UnknownOutcome if writing else ServerError
    else:
        kind = _BY_STATUS.get(status, ApiError)
    return kind(message, status=status, reason=reason, details=details)
