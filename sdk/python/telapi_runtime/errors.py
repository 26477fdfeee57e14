"""The exception of the library."""

from typing import Any


class TelapiError(Exception):
    """A request failed, or the service rejected the runtime.

    The codes are those of docs/errors.md, and of the library itself: CLOSED (the Runtime is
    closed), CONNECTION_CLOSED and HANDSHAKE_REJECTED (the service rejected it without a code).
    """

    def __init__(self, code: str, message: str, details: Any = None) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message, self.details = code, message, details


def from_wire(error: Any) -> TelapiError:
    """Returns the exception for the member error of a frame or of an ErrorResponse."""
    return TelapiError(str(error["code"]), str(error["message"]), error.get("details"))
