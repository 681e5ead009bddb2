"""The client: `with Rowlock(url).lock("x", timeout=5) as guard`."""

import ssl
import threading
import uuid
from types import TracebackType
from typing import Callable, Optional, Sequence, Type, Union
from urllib.parse import quote

from .errors import Busy, LeaseOver, RowlockError, TimedOut
from .lease import Lease
from .transport import ANSWER_MAX, Json, Transport, now

# Seconds that one request waits at most; the node itself answers after half of the lease's time.
WAIT_MAX = 30.0
# Seconds for an attempt with `timeout` 0: it takes no place in the queue, but a node has to answer.
AT_ONCE = 15.0

OnWaiting = Callable[[int], None]


class Rowlock:
    """A cluster. `urls` are those of the nodes' `api` listeners; every lock has a lease of its own.

    `token` goes into `Authorization: Bearer`; `tls` is for `https://`; `ttl` is the time of leases in
    seconds, after which the locks of a program that has died are free.
    """

    def __init__(
        self,
        urls: Union[str, Sequence[str]],
        *,
        token: Optional[str] = None,
        tls: Optional[ssl.SSLContext] = None,
        ttl: float = 10.0,
    ) -> None:
        self._transport = Transport(urls, token, tls)
        self._ttl = ttl

    def lock(
        self,
        name: str,
        timeout: Optional[float] = None,
        *,
        mode: str = "exclusive",
        permits: Optional[int] = None,
        limit: Optional[int] = None,
        owner: Optional[str] = None,
        label: Optional[str] = None,
        on_waiting: Optional[OnWaiting] = None,
    ) -> "Lock":
        """An attempt to take the lock `/locks/NAME`; nothing happens before `acquire` or `with`.

        `timeout` is in seconds: None waits without end, 0 takes no place in the queue. `mode` is
        "exclusive", "shared" or "permits". `on_waiting` is called with the position in the queue.
        """
        asked = {"mode": mode, "permits": permits, "limit": limit, "owner": owner, "label": label}
        body = {key: value for key, value in asked.items() if value is not None}
        return Lock(self._transport, self._ttl, name, timeout, body, on_waiting)


class Lock:
    """One attempt. It can be made again after it has ended, but not by two threads at a time."""

    def __init__(
        self,
        transport: Transport,
        ttl: float,
        name: str,
        timeout: Optional[float],
        body: Json,
        on_waiting: Optional[OnWaiting],
    ) -> None:
        self._transport, self._ttl, self._timeout = transport, ttl, timeout
        self._path = f"/v1/locks/{quote(name)}"
        self._body, self._on_waiting = body, on_waiting
        self._guard: Optional[Guard] = None
        self._lease: Optional[Lease] = None
        self._aborted = threading.Event()

    def acquire(self) -> "Guard":
        """Takes the lock. Raises `Busy`, `TimedOut`, `LeaseOver` or `Refused`; none leaves a place behind."""
        start = now()
        until = float("inf") if self._timeout is None else start + (self._timeout or AT_ONCE)
        self._lease = lease = Lease(self._transport, self._ttl, until)
        try:
            if self._aborted.is_set():
                raise LeaseOver("the attempt was aborted")
            return self._ask(lease, until)
        except BaseException:
            lease.end()
            raise

    def abort(self) -> None:
        """Ends an attempt that waits in another thread, which gets `LeaseOver`; its place is given back."""
        self._aborted.set()
        if self._lease is not None:
            self._lease.end()

    def _ask(self, lease: Lease, until: float) -> "Guard":
        body = dict(self._body, secret=lease.secret, request_id=uuid.uuid4().hex)
        while True:
            left = until - now()
            if lease.lost:
                raise LeaseOver("the lease is over")
            if left <= 0:
                raise TimedOut("the lock was not granted in time")
            # Invariant: all requests of an attempt wait, or none does; the server takes them for one then.
            wait = 0.0 if self._timeout == 0 else max(0.001, min(left, WAIT_MAX, self._ttl / 2))
            body["wait_ms"] = int(wait * 1000)
            # A wait of the whole rest would leave the answer no time to come back.
            bound = min(until + (0.0 if wait == 0 else min(ANSWER_MAX, self._ttl)), lease.deadline)
            try:
                status, answer = self._transport.call(
                    "POST", f"{self._path}/acquire", body, bound, each=wait + min(ANSWER_MAX, self._ttl / 3)
                )
            except TimedOut:
                # The lease's own thread may have moved its deadline meanwhile.
                continue
            state = answer.get("state")
            if status == 404 or state == "gone":
                raise LeaseOver("the place in the queue was taken away")
            if state == "held":
                if lease.lost:
                    raise LeaseOver("the lease has ended before the answer came")
                return Guard(self._transport, self._path, lease, answer["token"])
            if state == "busy":
                raise Busy(answer.get("holder"))
            if state != "waiting":
                raise RowlockError(f"not an answer of this API: {status} {answer}")
            if self._on_waiting is not None:
                self._on_waiting(answer["position"])

    def __enter__(self) -> "Guard":
        self._guard = self.acquire()
        return self._guard

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.release()


class Guard:
    """A lock that is held."""

    def __init__(self, transport: Transport, path: str, lease: Lease, token: str) -> None:
        self._transport, self._path, self._lease, self._text = transport, path, lease, token
        self._released = False

    @property
    def token(self) -> int:
        """The fencing token: give it to what you write to. Tokens of a lock rise."""
        return int(self._text)

    @property
    def lost(self) -> bool:
        """Whether the lock may be somebody else's: stop then. Also true after `release`."""
        return self._released or self._lease.lost

    def wait_lost(self, timeout: Optional[float] = None) -> bool:
        """Waits until the lock is lost or released, for `timeout` seconds at most; whether it is."""
        return self._lease.wait_lost(timeout) or self._released

    def verify(self) -> bool:
        """Asks the cluster whether the lock is held by this token."""
        until = min(now() + ANSWER_MAX, self._lease.deadline)
        _, answer = self._transport.call("POST", f"{self._path}/verify", {"token": self._text}, until)
        return answer.get("held") is True

    def release(self) -> bool:
        """Gives the lock back; whether it was still held. It does not raise, and may be repeated.

        False also when no node has answered before the lease's deadline: then nobody can know.
        """
        if self._released:
            return False
        self._released = True
        self._lease.silence()
        body = {"secret": self._lease.secret, "token": self._text}
        try:
            until = self._lease.deadline
            _, answer = self._transport.call("POST", f"{self._path}/release", body, until, each=self._ttl())
        except RowlockError:
            # Nobody has answered: the lease ends by itself, and the lock with it.
            answer = {}
        self._lease.end()
        return answer.get("released") is True

    def silence(self) -> None:
        """Stops keep-alive, so that the lock is lost: for tests of what happens then."""
        self._lease.silence()

    def _ttl(self) -> float:
        return max(0.5, (self._lease.deadline - now()) / 3)
