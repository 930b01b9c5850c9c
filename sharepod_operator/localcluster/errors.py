"""What can go wrong with the local control plane, told in one line each."""

from __future__ import annotations


class LocalClusterError(Exception):
    """The local control plane can't be built, started or reached; the text is one line and says what to do."""


class ApiError(LocalClusterError):
    """The API server refused a request.

    Attributes:
        code: the HTTP status.
        reason: Kubernetes' reason, such as `NotFound`, `AlreadyExists` or `Invalid`; empty when the answer had none.
    """

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
