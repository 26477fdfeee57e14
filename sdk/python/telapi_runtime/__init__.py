"""Call runtimes for telapi. See README.md."""

from .channel import Channel, Entry, WorkItem
from .errors import TelapiError
from .runtime import Runtime

__all__ = ["Channel", "Entry", "Runtime", "TelapiError", "WorkItem"]
