"""Locks of a Rowlock cluster by HTTP, with nothing but the standard library."""

from .asynchronous import AsyncLock, AsyncRowlock
from .client import Guard, Lock, Rowlock
from .errors import Busy, LeaseOver, Refused, RowlockError, TimedOut

__all__ = [
    "AsyncLock", "AsyncRowlock", "Busy", "Guard", "LeaseOver", "Lock", "Refused", "Rowlock",
    "RowlockError", "TimedOut",
]
