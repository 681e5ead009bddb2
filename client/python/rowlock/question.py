"""Questions: a holder is asked to give its lock back. It keeps the lock until it does, or until a deadline."""

import time
from dataclasses import dataclass
from typing import Any, Optional, Tuple

from .errors import Refused
from .transport import ANSWER_MAX, Json, Transport, is_text, milliseconds, now


@dataclass(frozen=True)
class Question:
    """Why the lock is wanted. Times are those of `time.time()`."""

    # The path of the lock.
    lock: str
    # The token of the holder that is asked.
    token: int
    reason: str
    # Who asks, as the cluster knows it.
    by: str
    asked_at: float
    # The guard is lost then, and the cluster takes the lock away; None: never.
    revoked_at: Optional[float]


class Heard:
    """The questions about one token, from answers of the cluster, which repeat them."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._ago = 0.0
        self.newest: Optional[Question] = None
        # Seconds until the lock is taken away, from the last answer.
        self.left: Optional[float] = None

    def hear(self, said: Any) -> Optional[Question]:
        """Takes the field `asked` of an answer; gives a question that was not heard before."""
        found = [one for one in map(self._read, said if isinstance(said, list) else []) if one is not None]
        if not found:
            self.left = None
            return None
        ago, self.left, question = min(found, key=lambda one: one[0])
        last, ago_then, self._ago = self.newest, self._ago, ago
        # The same question grows older from answer to answer.
        if last is not None and _key(question) == _key(last) and ago >= ago_then:
            return None
        self.newest = question
        return question

    def _read(self, one: Any) -> Optional[Tuple[float, Optional[float], Question]]:
        if not isinstance(one, dict) or one.get("token") != self._token:
            return None
        ago, left = milliseconds(one.get("asked_ms_ago")), milliseconds(one.get("revoked_in_ms"))
        if ago is None or not all(isinstance(one.get(field), str) for field in ("lock", "reason", "by")):
            return None
        at, token, left = time.time(), int(self._token), None if left is None else left / 1000
        revoked_at = None if left is None else at + left
        return ago, left, Question(one["lock"], token, one["reason"], one["by"], at - ago / 1000, revoked_at)


def _key(one: Question) -> Any:
    return one.reason, one.by, one.revoked_at is None


def ask(transport: Transport, path: str, body: Json) -> int:
    """See `Rowlock.ask`; `path` is the address of the lock."""

    def is_known(status: int, answer: Json) -> bool:
        if status == 404:
            return is_text(answer.get("title"))
        return status == 200 and isinstance(answer.get("asked"), int)

    status, answer = transport.call("POST", f"{path}/ask", body, now() + ANSWER_MAX, wants=is_known)
    if status == 404:
        raise Refused(status, answer)
    return int(answer["asked"])
