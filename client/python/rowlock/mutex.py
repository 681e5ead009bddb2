"""A lock with the methods of `threading.Lock`."""

import threading
from types import TracebackType
from typing import Any, Optional, Type

from .client import Guard, Rowlock
from .errors import Busy, LeaseOver, TimedOut


class Mutex:
    """A lock of a cluster for code that takes a `threading.Lock`.

    A hold belongs to its thread, which cannot take it again. `timeout` is that of an `acquire` without one; `options`
    are those of `Rowlock.lock`. The package `sherlock` has the same methods; there `acquire` raises at a timeout, and
    a lock ends after `expire`, while this one is kept alive.
    """

    def __init__(self, cluster: Rowlock, name: str, timeout: Optional[float] = None, **options: Any) -> None:
        self._cluster, self._name, self._timeout, self._options = cluster, name, timeout, options
        self._held = threading.local()

    @property
    def guard(self) -> Optional[Guard]:
        """The guard of this thread's hold, for its token; None: it has none."""
        return getattr(self._held, "guard", None)

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Takes the lock, and returns whether it did. Raises `LeaseOver` or `Refused`, and `TimedOut` where no node has
        answered to an attempt that does not wait."""
        if self.locked():
            raise RuntimeError(f"this thread holds the lock {self._name} already")
        if timeout != -1 and (timeout < 0 or not blocking):
            raise ValueError("a timeout is for an acquire that blocks, and not negative")
        wait = (self._timeout if timeout == -1 else timeout) if blocking else 0
        try:
            self._held.guard = self._cluster.lock(self._name, wait, **self._options).acquire()
        except Busy:
            return False
        except TimedOut:
            if wait == 0:
                raise
            return False
        return True

    def release(self) -> None:
        """Releases this thread's hold. Raises `LeaseOver` if it was lost, or no node has answered, and `RuntimeError` if
        there is none."""
        guard = self.guard
        if guard is None:
            raise RuntimeError(f"this thread does not hold the lock {self._name}")
        del self._held.guard
        if not guard.release():
            raise LeaseOver(f"the lock {self._name} was lost, or no node has answered to its release")

    def locked(self) -> bool:
        """Whether this thread holds it. Asks no node."""
        guard = self.guard
        return guard is not None and not guard.lost

    def __enter__(self) -> bool:
        if not self.acquire():
            raise TimedOut(f"the lock {self._name} was not granted in time")
        return True

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.release()
