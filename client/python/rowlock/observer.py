"""Observers: a program learns how long its acquires wait, and how long it holds the locks."""

import logging
import threading
from dataclasses import dataclass
from typing import Any, Callable, Optional, Set

from .errors import Busy, LeaseOver, Refused, TimedOut
from .transport import now

# Metrics names of one client; `OTHER` stands for those beyond.
NAMES_MAX = 100
DEFAULT = "default"
OTHER = "other"

LOG = logging.getLogger("rowlock")


@dataclass(frozen=True)
class Wait:
    """An acquire that has ended."""

    # The metrics name.
    name: str
    # The lock itself: for spans, not for metrics.
    lock: str
    # Whether the lock was found taken; False also where no node has said so.
    contended: bool
    # "granted", "busy", "timed_out", "lost" (the queue position), "canceled", "refused" or "failed".
    outcome: str
    # From the call to its end.
    seconds: float


@dataclass(frozen=True)
class Hold:
    """A hold that has ended."""

    name: str
    lock: str
    # "released" or "lost".
    outcome: str
    # From the grant to the release or the loss.
    seconds: float


class Observer:
    """Gets the waits and holds of a client, in the threads that end them: it must not block. Its exceptions are logged."""

    def waiting(self, name: str, lock: str) -> None:
        """An acquire begins; `waited` follows in any case."""

    def waited(self, wait: Wait) -> None:
        """An acquire has ended."""

    def held(self, hold: Hold) -> None:
        """A hold has ended."""


class Names:
    """The metrics names of a client."""

    def __init__(self) -> None:
        self._known: Set[str] = {DEFAULT, OTHER}
        self._lock = threading.Lock()

    def bound(self, name: Optional[str]) -> str:
        """Gives the name, `DEFAULT` without one, and `OTHER` beyond the first `NAMES_MAX`."""
        if name is None:
            return DEFAULT
        with self._lock:
            if name not in self._known and len(self._known) >= NAMES_MAX + 2:
                return OTHER
            self._known.add(name)
        return name


class Measure:
    """The wait and the hold of one attempt that began at a moment of `now`."""

    def __init__(self, observer: Observer, name: str, lock: str, began: float) -> None:
        self._observer, self._name, self._lock, self._began = observer, name, lock, began
        self.contended = False
        self._since: Optional[float] = None
        self._ending = threading.Lock()
        self._call(observer.waiting, name, lock)

    def end_wait(self, error: Optional[BaseException], is_aborted: bool) -> None:
        """Ends the wait; without an error the hold begins at the same moment."""
        at = now()
        outcome = "granted" if error is None else _outcome(error, is_aborted)
        contended = self.contended or outcome == "busy"
        wait = Wait(self._name, self._lock, contended, outcome, at - self._began)
        self._call(self._observer.waited, wait)
        if error is None:
            self._since = at

    def end_hold(self, outcome: str, at: float) -> None:
        """Ends the hold, once, at a moment of `now`; nothing where it has not begun."""
        with self._ending:
            since, self._since = self._since, None
        if since is not None:
            self._call(self._observer.held, Hold(self._name, self._lock, outcome, max(0.0, at - since)))

    def _call(self, method: Callable[..., None], *args: Any) -> None:
        try:
            method(*args)
        except Exception:
            LOG.exception("the observer of lock %s has failed", self._lock)


def _outcome(error: BaseException, is_aborted: bool) -> str:
    if is_aborted or not isinstance(error, Exception):
        return "canceled"
    kinds = {Busy: "busy", TimedOut: "timed_out", LeaseOver: "lost", Refused: "refused"}
    return kinds.get(type(error), "failed")
