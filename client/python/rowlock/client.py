"""The client: `with Rowlock(url).lock("x", timeout=5) as guard`."""

import asyncio
import functools
import inspect
import logging
import os
import ssl
import threading
import uuid
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Callable, Optional, Sequence, Type, TypeVar, Union
from urllib.parse import quote, unquote

from .errors import Busy, LeaseOver, Refused, RowlockError, Stale, TimedOut
from .fence import HEADER
from .lease import Lease
from .observer import Measure, Names, Observer
from .question import Heard, Question, ask
from .transport import ANSWER_MAX, Json, Transport, is_text, is_token, now

# Seconds that one request waits at most; the node itself answers after half of the lease's time.
WAIT_MAX = 30.0
# Seconds for an attempt with `timeout` 0: it takes no place in the queue, but a node has to answer.
AT_ONCE = 15.0
# Seconds that one request waits at least, unless less is left.
WAIT_MIN = 0.05
# Seconds after which a thread that waits looks at the clock, which also runs while the machine sleeps.
LOOK_EVERY = 60.0
# Seconds past the timeout for which the error of a request is waited for.
SAY_MAX = 0.2
# Seconds after which a coroutine looks for a question: they come with keep-alive, a few seconds apart.
ASKED_EVERY = 0.1
INFINITE = float("inf")
# Seconds of a lease: a century. The cluster has bounds of its own.
TTL_MAX = 36_500 * 86_400.0
# Before the name of a lock in an address.
LOCKS = "/v1/locks/"
# Where `rowlock up` takes locks by HTTP.
API = "http://127.0.0.1:8481"

# Gets a warning for each release without a caller that has failed.
LOG = logging.getLogger("rowlock")

T = TypeVar("T")
OnWaiting = Callable[[int], None]
OnAsked = Callable[[Question], None]


class Rowlock:
    """A cluster. `urls` are those of the nodes' `api` listeners; every lock has a lease of its own. A path in a URL,
    such as that of a gateway, stands before that of each request.

    `token` goes into `Authorization: Bearer`; `tls` is for `https://`; `ttl` is the time of leases in
    seconds, after which the locks of a program that has died are free. `observer` gets the waits and holds.
    """

    def __init__(
        self,
        urls: Union[str, Sequence[str]],
        *,
        token: Optional[str] = None,
        tls: Optional[ssl.SSLContext] = None,
        ttl: float = 10.0,
        observer: Optional[Observer] = None,
    ) -> None:
        if not 0.001 <= ttl <= TTL_MAX:
            raise ValueError(f"not the time of a lease in seconds: {ttl}")
        self._transport = Transport(urls, token, tls)
        self._ttl = ttl
        self._observer, self._names = observer, Names()

    @classmethod
    def from_env(cls, **options: Any) -> "Rowlock":
        """A client by `ROWLOCK_API` (URLs with commas between; else http://127.0.0.1:8481), `ROWLOCK_TOKEN`, and
        `ROWLOCK_TLS_CA`, the file of the authorities that it trusts. `options` of the constructor count more."""
        options.setdefault("token", os.environ.get("ROWLOCK_TOKEN") or None)
        authorities = os.environ.get("ROWLOCK_TLS_CA")
        if authorities and "tls" not in options:
            try:
                options["tls"] = ssl.create_default_context(cafile=authorities)
            except OSError as error:
                raise ValueError(f"cannot load ROWLOCK_TLS_CA={authorities}: {error}") from error
        return cls((os.environ.get("ROWLOCK_API") or API).split(","), **options)

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
        on_asked: Optional[OnAsked] = None,
        keep_alive: bool = True,
        metrics_name: Optional[str] = None,
        min_hold: Optional[float] = None,
    ) -> "Lock":
        """The lock of this name, whose levels are separated by slashes; nothing happens before `acquire` or `with`.

        `name` may also be the path of a znode, which begins with a slash. `timeout` is in seconds: None waits
        without end, 0 takes no place in the queue; it is kept also where nodes do not answer. `mode` is
        "exclusive", "shared" or "permits". `on_waiting` is called with the position in the queue, and
        `on_asked`, in a thread of its own, with each question to the holder (`Guard.asked`). Without `keep_alive`
        no thread keeps the lock once it is held: call `Guard.keep_alive` in time. `metrics_name` is what the
        observer gets as the name: one of a few ("orders"), not of one for each lock; "default" without it.
        `min_hold` is the least time in seconds from this grant to the next, also when the lock is released before or
        its holder dies.
        """
        asked = {"mode": mode, "permits": permits, "limit": limit, "owner": owner, "label": label}
        asked["min_hold_ms"] = None if min_hold is None else int(min_hold * 1000)
        body = {key: value for key, value in asked.items() if value is not None}
        lock = Lock(self._transport, self._ttl, name, timeout, body, on_waiting, on_asked, keep_alive)
        observer, bounded = self._observer, self._names.bound(metrics_name)
        if observer is not None:
            lock._measure = lambda began: Measure(observer, bounded, name, began)
        return lock

    def once(
        self, name: str, every: Optional[float] = None, **options: Any
    ) -> Callable[[Callable[..., T]], Callable[..., Optional[T]]]:
        """Decorates a function that many processes call at about the same time and one is to run. The others get None:
        while a call runs and, with `every`, for that many seconds after its beginning.

        `every` is to be longer than the calls are apart and shorter than their period; a call that has failed is left
        out within it, too. A call that loses the lock goes on: where that matters use `with`, and check `Guard.lost`.
        `options` are those of `lock`.
        """

        def decorate(work: Callable[..., T]) -> Callable[..., Optional[T]]:
            kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
            if any(is_kind(work) for is_kind in kinds):
                raise TypeError(f"{name}: what a coroutine or generator does would outlive its lock; use with")

            @functools.wraps(work)
            def run(*args: Any, **named: Any) -> Optional[T]:
                try:
                    guard = self.lock(name, 0, min_hold=every, **options).acquire()
                except Busy:
                    return None
                try:
                    return work(*args, **named)
                finally:
                    guard.release_later()

            return run

        return decorate

    def flush(self, timeout: Optional[float] = None) -> bool:
        """Waits for the releases that nothing waits for (`Guard.release_later`, the end of `with`), for `timeout` seconds
        at most. Returns False if some are left. The end of the program waits for them, too."""
        return self._transport.flush(INFINITE if timeout is None else now() + timeout)

    def ask(
        self, name: str, reason: str, *, within: Optional[float] = None, label: Optional[str] = None
    ) -> int:
        """Asks the holders of this lock to give it back: they learn it with their next keep-alive (`Guard.asked`).

        `reason` has at most 256 bytes. Gives how many holders were asked; 0: the lock is free. Nothing is taken
        away, unless `within` is given, in seconds (1 to 3,600): then the cluster does so at that deadline, and an
        operator's token is needed. Raises `TimedOut` or `Refused`.
        """
        wanted = {"reason": reason, "within_ms": None if within is None else int(within * 1000), "label": label}
        body = {key: value for key, value in wanted.items() if value is not None}
        return ask(self._transport, LOCKS + quote(name), body)


class Lock:
    """One lock of a cluster. It can be taken again after it was given back, but by one thread at a time."""

    def __init__(
        self,
        transport: Transport,
        ttl: float,
        name: str,
        timeout: Optional[float],
        body: Json,
        on_waiting: Optional[OnWaiting],
        on_asked: Optional[OnAsked],
        keep_alive: bool,
    ) -> None:
        self._transport, self._ttl, self._timeout = transport, ttl, timeout
        self._keeps = keep_alive
        self._path = LOCKS + quote(name)
        self._body, self._on_waiting, self._on_asked = body, on_waiting, on_asked
        # Begins to measure an attempt from a moment of `now`, for the observer.
        self._measure: Callable[[float], Optional[Measure]] = lambda _: None
        self._guard: Optional[Guard] = None
        self._attempt: Optional[Attempt] = None

    def acquire(self) -> "Guard":
        """Takes the lock. Raises `Busy`, `TimedOut`, `LeaseOver` or `Refused`; none leaves a place behind."""
        return self._begin().finish()

    def abort(self) -> None:
        """Ends an attempt that waits in another thread, which gets `LeaseOver`; its place is given back."""
        attempt = self._attempt
        if attempt is not None:
            attempt.abort()

    def _begin(self) -> "Attempt":
        self._attempt = Attempt(self)
        return self._attempt

    def __enter__(self) -> "Guard":
        # Not reentrant: the hold of before would have no `with` block any more that gives it back.
        if self._guard is not None and not self._guard.lost:
            raise RowlockError("this Lock is held already: make another one with Rowlock.lock")
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
            guard.release_later()


class Attempt:
    """One attempt to take a lock. Its requests are made by a thread, so that its end waits for no node."""

    def __init__(self, lock: Lock) -> None:
        self._transport, self._ttl, self._timeout = lock._transport, lock._ttl, lock._timeout
        self._path, self._body, self._keeps = lock._path, lock._body, lock._keeps
        self._on_waiting, self._on_asked = lock._on_waiting, lock._on_asked
        self._began, self._measure = now(), lock._measure
        self._measured: Optional[Measure] = None
        self._is_aborted = False
        self._until = INFINITE if self._timeout is None else self._began + (self._timeout or AT_ONCE)
        self._lock = threading.Lock()
        # Set when the result is not wanted any more. Invariant: a lease that is opened later is ended at once.
        self._over = threading.Event()
        self._lease: Optional[Lease] = None
        # A position in the queue, the guard, or why there is none.
        self._news: "SimpleQueue[Union[int, Guard, BaseException]]" = SimpleQueue()

    def finish(self) -> "Guard":
        """Waits for the end, until the timeout."""
        self._measured = measured = self._measure(self._began)
        try:
            guard = self._wait()
        except BaseException as error:
            if measured is not None:
                measured.end_wait(error, self._is_aborted)
            self._give_up()
            raise
        if measured is not None:
            measured.end_wait(None, False)
            guard._observe(measured)
        return guard

    def _wait(self) -> "Guard":
        threading.Thread(target=self._run, name="rowlock attempt", daemon=True).start()
        while True:
            news = self._next()
            if isinstance(news, Guard):
                return news
            if isinstance(news, BaseException):
                raise news
            if self._on_waiting is not None:
                self._on_waiting(news)

    def abort(self) -> None:
        """Ends `finish`, also one that has not begun, with `LeaseOver`. Gives back what was taken."""
        self._is_aborted = True
        self._news.put(LeaseOver("the attempt was aborted"))
        self._give_up()

    def _next(self) -> "Union[int, Guard, BaseException]":
        while True:
            left = self._until - now()
            try:
                return self._news.get(timeout=max(0.0, min(left, LOOK_EVERY)))
            except Empty:
                if left > 0:
                    continue
            try:
                # The thread's own error says what the last node has answered.
                return self._news.get(timeout=SAY_MAX)
            except Empty:
                return TimedOut("the lock was not granted in time")

    def _give_up(self) -> None:
        with self._lock:
            self._over.set()
            lease = self._lease
        if lease is not None:
            lease.end()

    def _run(self) -> None:
        try:
            lease = Lease(self._transport, self._ttl, self._until, self._over, self._keeps)
            with self._lock:
                self._lease = lease
            # The lease is opened meanwhile: an earlier release of this lock costs no round trip.
            self._transport.behind(self._path, self._until, self._over)
            with self._lock:
                is_over = self._over.is_set()
            if is_over:
                lease.end()
            else:
                self._news.put(self._ask(lease))
        except BaseException as error:
            self._news.put(error)

    def _ask(self, lease: Lease) -> "Guard":
        body = dict(self._body, secret=lease.secret, request_id=uuid.uuid4().hex)
        while True:
            if not lease.keeps:
                # Each answer comes within half of the lease's time.
                lease.keep_alive()
            left = self._until - now()
            if left <= 0:
                raise TimedOut("the lock was not granted in time")
            if lease.lost:
                raise LeaseOver("the lease is over")
            share = self._transport.share(left)
            # Invariant: all requests of an attempt wait, or none does; the server takes them for one then.
            wait = 0.0 if self._timeout == 0 else min(left, WAIT_MAX, lease.ttl / 2, max(WAIT_MIN, share))
            body["wait_ms"] = int(wait * 1000) if wait == 0 else max(1, int(wait * 1000))
            each = wait + min(ANSWER_MAX, lease.ttl / 3, max(WAIT_MIN, share))
            try:
                bound = min(self._until, lease.deadline)
                path = f"{self._path}/acquire"
                status, answer = self._transport.call(
                    "POST", path, body, bound, each=each, wants=_is_standing, over=self._over)
            except TimedOut:
                # The lease's own thread may have moved its deadline meanwhile.
                continue
            state = answer.get("state")
            if self._measured is not None and (state == "waiting" or answer.get("contended") is True):
                self._measured.contended = True
            if status == 404 or state == "gone":
                raise LeaseOver("the place in the queue was taken away")
            if state == "held":
                if lease.lost:
                    raise LeaseOver("the lease has ended before the answer came")
                return Guard(self._transport, self._path, lease, answer, self._on_asked)
            if state == "busy":
                raise Busy(answer.get("holder"))
            self._news.put(answer["position"])


def _is_standing(status: int, answer: Json) -> bool:
    state = answer.get("state")
    if state == "held":
        return status == 200 and is_token(answer.get("token"))
    if state == "waiting":
        return status == 202 and isinstance(answer.get("position"), int)
    return status == 404 or (status == 200 and state in ("busy", "gone"))


class Guard:
    """A lock that is held. It belongs to the process that took it: in a fork it is lost, and stays as it is."""

    def __init__(
        self, transport: Transport, path: str, lease: Lease, answer: Json, on_asked: Optional[OnAsked]
    ) -> None:
        self._transport, self._path, self._lease = transport, path, lease
        self._text: str = answer["token"]
        self._released = False
        self._measured: Optional[Measure] = None
        self._heard, self._on_asked = Heard(self._text), on_asked
        lease.hears = self._hear
        lease.hear(answer.get("asked"), now())

    def _observe(self, measured: Measure) -> None:
        self._measured, self._lease.on_end = measured, self._end_hold
        if self._lease.lost:
            self._end_hold("lost")

    def _end_hold(self, outcome: str) -> None:
        # A hold in the past: the lease may have ended while the program stood still. A fork has no hold.
        if self._measured is not None and not self._lease.is_inherited:
            self._measured.end_hold(outcome, min(now(), self._lease.deadline))

    def _hear(self, said: Any) -> Optional[float]:
        question = self._heard.hear(said)
        if question is not None and self._on_asked is not None:
            self._tell(self._on_asked, question)
        return self._heard.left

    def _tell(self, on_asked: OnAsked, question: Question) -> None:
        told = threading.Thread(target=on_asked, args=(question,), name="rowlock asked", daemon=True)
        try:
            told.start()
        except RuntimeError:
            # No threads are left: keep-alive goes on, and `asked` has the question.
            pass

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
        return self._released or self._lease.wait_lost(timeout) or self._released

    def keep_alive(self) -> bool:
        """Keeps the lock for another time of its lease from now, and gives whether it is held. For locks taken with
        `keep_alive=False`: call it at least each third of the lease's time. Nothing else notices that the program
        is late: check `lost` before each step, and give each write the token.
        """
        return not self._released and self._lease.keep_alive()

    def asked(self) -> Optional[Question]:
        """The newest question to this holder, or None. The lock stays held, until `Question.revoked_at` at most: give
        it back where the work can be cut."""
        return self._heard.newest

    async def until_asked(self) -> Optional[Question]:
        """For asyncio: waits for a question to this holder; None: the lock is lost or released."""
        while not self.lost and self.asked() is None:
            await asyncio.sleep(ASKED_EVERY)
        return None if self.lost else self.asked()

    def verify(self) -> bool:
        """Asks the cluster whether the lock is held by this token."""
        until = min(now() + ANSWER_MAX, self._lease.deadline)
        def is_known(status: int, answer: Json) -> bool:
            return status == 404 or (status == 200 and isinstance(answer.get("held"), bool))

        body = {"token": self._text}
        _, answer = self._transport.call("POST", f"{self._path}/verify", body, until, wants=is_known)
        return answer.get("held") is True

    def release(self) -> bool:
        """Gives the lock back; whether it was still held. It does not raise, and may be repeated. A fork of the
        process that took it gives nothing back.

        False also when no node has answered before the lease's deadline: then nobody can know.
        """
        if not self._let_go():
            return False
        try:
            return self._request_release()
        except RowlockError:
            # No node has answered: the lease ends by itself, and the lock with it.
            return False
        finally:
            self._lease.end()

    def release_later(self) -> None:
        """Gives the lock back without waiting, as the end of `with` does: a thread sends the request at once and repeats
        it until the lease's deadline, and the end of the program waits for that thread. What this client asks of the
        same lock from now on is sent behind the release. A failure is a warning of the logger `rowlock`.

        With 64 of them under way it waits, as `release`.
        """
        if self._let_go():
            self._transport.later(self._path, self._report_release, self._lease.end)

    def _let_go(self) -> bool:
        if self._released or self._lease.is_inherited:
            return False
        self._end_hold("lost" if self._lease.lost else "released")
        self._released = True
        self._lease.silence()
        return True

    def _request_release(self) -> bool:
        def is_done(status: int, answer: Json) -> bool:
            return status == 404 or (status == 200 and isinstance(answer.get("released"), bool))

        body = {"secret": self._lease.secret, "token": self._text}
        until, path = self._lease.deadline, f"{self._path}/release"
        _, answer = self._transport.call("POST", path, body, until, each=self._ttl(), wants=is_done)
        return answer.get("released") is True

    def _report_release(self) -> None:
        name = unquote(self._path[len(LOCKS):])
        try:
            if self._lease.lost or not self._request_release():
                LOG.warning("lock %s, token %s: not held any more at its release", name, self._text)
        except RowlockError as error:
            LOG.warning("cannot release lock %s, token %s: %s; it is free when its lease ends", name, self._text, error)

    def create(self, path: str, data: bytes = b"") -> int:
        """Makes a znode, only while this guard's token holds the lock; its version. Raises `Stale` where it does not
        any more, and `Refused`: there is one (409). It takes effect once."""
        return self._write("POST", path, data, None, 201)

    def set(self, path: str, data: bytes, version: Optional[int] = None) -> int:
        """Sets the data of a znode, as `create` makes one; its version. With `version` only if it has that one, else
        `Refused` (412). Status 404 is that of a znode that does not exist."""
        return self._write("PUT", path, data, version, 200)

    def delete(self, path: str, version: Optional[int] = None) -> None:
        """Deletes a znode, as `set` changes one."""
        self._write("DELETE", path, b"", version, 204)

    def _write(self, method: str, path: str, data: bytes, version: Optional[int], done: int) -> int:
        if self._lease.is_inherited:
            raise Stale(self.token, 0)
        headers = {
            HEADER: f"{self._path[len(LOCKS):]};{self._text}",
            "Rowlock-Lease": self._lease.secret,
            "Idempotency-Key": uuid.uuid4().hex,
        }
        if version is not None:
            headers["If-Match"] = f'"{version}"'

        def is_known(status: int, answer: Json) -> bool:
            if status == 404:
                return is_text(answer.get("title"))
            return status == done and (done == 204 or isinstance(answer.get("stat"), dict))

        try:
            until = max(self._lease.deadline, now() + 1)
            status, answer = self._transport.call(
                method, f"/v1/znodes{quote(path)}", data, until, each=self._ttl(), wants=is_known, headers=headers)
        except Refused as refused:
            if refused.status == 412 and refused.problem.get("stale") is True:
                raise Stale(self.token, 0) from None
            raise
        if status == 404:
            raise Stale(self.token, 0) if self.lost else Refused(status, answer)
        return int(answer["stat"]["version"]) if done != 204 else 0

    def silence(self) -> None:
        """Stops keep-alive, so that the lock is lost: for tests of what happens then."""
        self._lease.silence()

    def _ttl(self) -> float:
        return max(0.5, (self._lease.deadline - now()) / 3)
