"""Why a lock was not granted."""

from typing import Any, Dict


class RowlockError(Exception):
    """All errors of this package."""


class Busy(RowlockError):
    """Somebody else has the lock, and `timeout` was 0. `holder` is what the server says about them."""

    def __init__(self, holder: Any) -> None:
        super().__init__(f"somebody else has the lock: {holder}")
        self.holder = holder


class TimedOut(RowlockError):
    """The time is over. The place in the queue was given back, or goes with the lease."""


class LeaseOver(RowlockError):
    """The lease has ended while its attempt waited: it has no place in the queue any more."""


class Stale(RowlockError):
    """The write came too late: a holder with the token `seen` has been there (0: a later one, or none)."""

    def __init__(self, token: int, seen: int) -> None:
        super().__init__(f"stale token {token}: its holder has lost the lock" + (f" to {seen}" if seen else ""))
        self.token = token
        self.seen = seen


class Refused(RowlockError):
    """The server does not allow it. `status` is that of HTTP; `problem` is the document of RFC 9457."""

    def __init__(self, status: int, problem: Dict[str, Any]) -> None:
        super().__init__(f"{status}: {problem.get('detail') or problem.get('title') or 'refused'}")
        self.status = status
        self.problem = problem
