"""Locks of a Rowlock cluster by HTTP, with nothing but the standard library."""

from .asynchronous import AsyncLock, AsyncRowlock
from .client import Guard, Lock, Rowlock
from .errors import Busy, LeaseOver, Refused, RowlockError, Stale, TimedOut
from .fence import Fence, FenceASGI, FenceWSGI
from .mutex import Mutex
from .observer import Hold, Observer, Wait
from .question import Question

__all__ = [
    "AsyncLock", "AsyncRowlock", "Busy", "Fence", "FenceASGI", "FenceWSGI", "Guard", "Hold", "LeaseOver",
    "Lock", "Mutex", "Observer", "Question", "Refused", "Rowlock", "RowlockError", "Stale", "TimedOut", "Wait",
]
