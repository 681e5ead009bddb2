"""A lease and the thread that keeps it alive."""

import os
import threading
from typing import Any, Callable, Optional

from .errors import RowlockError
from .transport import Json, Transport, is_text, milliseconds, now

# Part of the time of a lease that its client does not count on: clocks do not run equally fast.
MARGIN = 0.1
# Seconds for which `end` waits for the cluster; the request goes on in the background.
END_MAX = 1.0


class Lease:
    """A session at the cluster. Its own thread asks for keep-alive at a third of its time, unless `keeps` is False.

    It belongs to the process that made it: in a fork it is lost, and nothing is sent.
    """

    def __init__(
        self, transport: Transport, ttl: float, until: float, over: threading.Event, keeps: bool = True
    ) -> None:
        body: Json = {"ttl_ms": int(ttl * 1000)}
        # The moment from which the first answer counts is taken before the call, so retries only shorten it.
        sent = now()
        each = min(ttl / 3, transport.share(until - sent))
        _, answer = transport.call("POST", "/v1/leases", body, until, each=each, wants=_is_lease, over=over)
        self.secret: str = answer["secret"]
        self._path = f"/v1/leases/{answer['lease']}"
        self.ttl: float = answer["ttl_ms"] / 1000
        self._transport = transport
        self._pid = os.getpid()
        self._deadline = sent + self.ttl * (1 - MARGIN)
        # When what it holds is taken away.
        self._revoked = float("inf")
        # Gets the field `asked` of each answer, and must not block; gives the seconds until the lock is taken away.
        self.hears: Callable[[Any], Optional[float]] = lambda _: None
        # Gets "released" or "lost", perhaps more than once.
        self.on_end: Callable[[str], None] = lambda _: None
        self._ended = threading.Event()
        self._stop = threading.Event()
        self._ending = threading.Lock()
        self._giving_back: Optional[threading.Thread] = threading.Thread(
            target=self._give_back, name="rowlock end", daemon=True)
        self.keeps = keeps
        if keeps:
            threading.Thread(target=self._keep_alive, name="rowlock keep-alive", daemon=True).start()

    @property
    def deadline(self) -> float:
        """A moment of `now` from which nothing of this lease may be relied on."""
        return self._deadline

    @property
    def is_inherited(self) -> bool:
        """Whether this process was forked from the one whose lease it is."""
        return self._pid != os.getpid()

    @property
    def lost(self) -> bool:
        """Whether it is over, or must be taken to be. Right also when the thread had no time to run."""
        if self.is_inherited or self._ended.is_set():
            return True
        if now() < self._deadline:
            return False
        self.on_end("lost")
        return True

    def wait_lost(self, timeout: Optional[float] = None) -> bool:
        """Waits until the lease is lost or given back, for `timeout` seconds at most; whether it is."""
        until = float("inf") if timeout is None else now() + timeout
        while not self.lost:
            left = min(until, self._deadline) - now()
            if left <= 0 and now() >= until:
                break
            self._ended.wait(max(0.001, left))
        return self.lost

    def keep_alive(self) -> bool:
        """Asks for keep-alive once; whether the lease lives."""
        if not self.lost:
            self._ask(now())
        return not self.lost

    def hear(self, asked: Any, sent: float) -> None:
        """Takes the field `asked` of the answer to a request that was sent at a moment of `now`."""
        left = self.hears(asked)
        if left is not None:
            # Invariant: what is taken away is lost before. The deadline of a question only moves nearer.
            self._revoked = min(self._revoked, sent + left)
            self._deadline = min(self._deadline, self._revoked)

    def silence(self) -> None:
        """Asks for no keep-alive any more: the lease ends by itself."""
        self._stop.set()

    def end(self) -> None:
        """Gives back everything of it, and waits `END_MAX` for a node. When none answers, it ends by itself."""
        if self.is_inherited:
            return
        self._stop.set()
        self.on_end("lost" if self.lost else "released")
        self._ended.set()
        with self._ending:
            work, self._giving_back = self._giving_back, None
        if work is None:
            # Another thread ends it.
            return
        try:
            work.start()
        except RuntimeError:
            # The program is at its end, and has no new threads any more.
            self._give_back()
        else:
            work.join(END_MAX)

    def _give_back(self) -> None:
        try:
            until = self._deadline
            body, each = {"secret": self.secret}, self.ttl / 3
            self._transport.call("DELETE", self._path, body, until, each=each, wants=_is_ended)
        except RowlockError:
            pass

    def _keep_alive(self) -> None:
        due = now() + self.ttl / 3
        while not self._ended.is_set():
            if self._stop.is_set():
                self._ended.wait(max(0.0, self._deadline - now()))
                break
            if self._stop.wait(max(0.0, min(due, self._deadline) - now())):
                continue
            sent = now()
            # Invariant: nothing is sent past the deadline, and a node that is silent leaves time for others.
            if sent >= self._deadline:
                break
            due = sent + self.ttl / 3
            self._ask(sent)
        self._lose()

    def _lose(self) -> None:
        if not self._ended.is_set():
            self.on_end("lost")
        self._ended.set()

    def _ask(self, sent: float) -> None:
        body = {"secret": self.secret}
        try:
            path = f"{self._path}/keepalive"
            status, answer = self._transport.call(
                "POST", path, body, self._deadline, each=self.ttl / 6, wants=_is_kept)
        except RowlockError:
            # No node, or a refusal: what is known of the lease holds until its deadline.
            return
        if status == 404:
            self._lose()
        elif not self.lost:
            # Invariant: a deadline that has passed is never moved, and none lies further ahead than the lease's time.
            valid = min(answer["valid_for_ms"] / 1000, self.ttl)
            self._deadline = min(sent + valid * (1 - MARGIN), self._revoked)
            self.hear(answer.get("asked"), sent)


def _is_lease(status: int, answer: Json) -> bool:
    is_whole = is_text(answer.get("secret")) and is_text(answer.get("lease"))
    return status == 201 and is_whole and (milliseconds(answer.get("ttl_ms")) or 0) > 0


def _is_ended(status: int, _answer: Json) -> bool:
    return status in (204, 404)


def _is_kept(status: int, answer: Json) -> bool:
    return status == 404 or (status == 200 and milliseconds(answer.get("valid_for_ms")) is not None)
