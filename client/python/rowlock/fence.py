"""Refuses late holders: `Fence` in a program, `FenceWSGI` and `FenceASGI` in front of a web service."""

import asyncio
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Awaitable, Callable, ContextManager, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple
from urllib.parse import quote

from .errors import Stale

# In which a token travels to a service: the lock, percent-encoded, a semicolon, the token.
HEADER = "Rowlock-Fence"
# Seconds for which a holder waits at most until writes with smaller tokens have ended.
ENTER_MAX = 30.0
# Tokens are positive 63-bit integers.
TOKEN_MAX = 2**63 - 1
# Methods that change nothing pass without a token.
SAFE = ("GET", "HEAD", "OPTIONS", "TRACE")

class Fence:
    """The largest token that a resource has seen. One for each resource. Safe for threads.

    It lives in memory: data that outlive the program need the token beside them (docs/fencing.md). `seen` is
    the token that was stored there.
    """

    def __init__(self, seen: int = 0) -> None:
        self._seen = seen
        self._changed = threading.Condition()
        # Tokens of writes that are under way, each with its count.
        self._inside: Dict[int, int] = {}

    @property
    def seen(self) -> int:
        """The largest token so far."""
        return self._seen

    def check(self, token: int) -> bool:
        """Remembers `token` if none was larger; False: refuse the write.

        Compare and write must be one step: call it under the lock of the data, or use `enter`.
        """
        with self._changed:
            return self._admit(token)

    @contextmanager
    def enter(self, token: int, timeout: float = ENTER_MAX) -> Iterator[None]:
        """For writes that take time: `with fence.enter(token):`. Raises `Stale`, and `TimeoutError` if writes with
        smaller tokens do not end within `timeout` seconds. Smaller tokens are refused from the call on."""
        until = time.monotonic() + timeout
        self._begin(token)
        try:
            with self._changed:
                if not self._changed.wait_for(lambda: self._is_first(token), max(0.0, until - time.monotonic())):
                    raise TimeoutError(f"writes with tokens smaller than {token} have not ended")
                self._still(token)
            yield
        finally:
            self._leave(token)

    def _admit(self, token: int) -> bool:
        if token < self._seen:
            return False
        self._seen = token
        return True

    def _begin(self, token: int) -> None:
        with self._changed:
            if not self._admit(token):
                raise Stale(token, self._seen)
            self._inside[token] = self._inside.get(token, 0) + 1

    def _is_first(self, token: int) -> bool:
        return min(self._inside) >= token

    def _still(self, token: int) -> None:
        if token < self._seen:
            raise Stale(token, self._seen)

    def _leave(self, token: int) -> None:
        with self._changed:
            self._inside[token] -= 1
            if not self._inside[token]:
                del self._inside[token]
            self._changed.notify_all()


def header(lock: str, token: int) -> str:
    """The value of `HEADER` for a lock, by its name or path."""
    return f"{quote(lock)};{token}"


# Locks the stored token of a lock for all processes of a service until the context ends, and then stores the
# `seen` of the `Fence` that it gave. It bounds its own wait and raises `TimeoutError` after it.
Store = Callable[[str], ContextManager[Fence]]


class _Turn:
    """A request that is under way, or waits until it may be."""

    def __init__(self, token: int) -> None:
        self.token = token


class _Turns:
    """The requests of one lock in their order: those of one token run together, and those of another token wait.
    With a store each request waits for the one before, since each locks the stored token.

    Invariant: a token counts from the end of a request that the service has not refused. Until then nothing says that
    its sender may write at all, so smaller tokens behind it wait for that answer.
    """

    def __init__(self, lock: str, store: Optional[Store]) -> None:
        self.lock, self.store = lock, store
        self.seen = 0
        self._changed = threading.Condition()
        self._turns: List[_Turn] = []
        # Enters and leaves the store in one thread, as connections of databases want it. A loop's few threads could
        # all wait for stored tokens, and none would be left to give one up.
        self.thread = ThreadPoolExecutor(1, "rowlock-fence")

    def begin(self, token: int) -> _Turn:
        with self._changed:
            turn = _Turn(token)
            self.still(turn)
            self._turns.append(turn)
            return turn

    def is_first(self, turn: _Turn) -> bool:
        """Whether no request before it keeps it waiting."""
        before = self._turns[:self._turns.index(turn)]
        return all(self.store is None and other.token == turn.token for other in before)

    def still(self, turn: _Turn) -> None:
        if turn.token < self.seen:
            raise Stale(turn.token, self.seen)

    def wait(self, turn: _Turn) -> None:
        """Waits for the requests before it. Raises `Stale`, or `TimeoutError` after `ENTER_MAX`."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.is_first(turn), ENTER_MAX):
                raise TimeoutError("requests of another holder have not ended")
            self.still(turn)

    def end(self, turn: _Turn, counts: bool) -> None:
        with self._changed:
            self._turns.remove(turn)
            if counts:
                self.seen = max(self.seen, turn.token)
            self._changed.notify_all()


def _counts(status: Optional[int]) -> bool:
    """A 4xx is a refusal, which has written nothing; any other end, also an exception, may have written."""
    return status is None or not 400 <= status < 500


class _Entry:
    """The stored token of a lock, locked for all processes from `enter` to `leave`."""

    def __init__(self, turns: _Turns, token: int) -> None:
        self._store, self._lock, self._token = turns.store, turns.lock, token
        self._context: Optional[ContextManager[Fence]] = None

    def enter(self) -> None:
        """Raises `Stale`, or what the store raises; then nothing is locked."""
        if self._store is None:
            return
        context = self._store(self._lock)
        self._fence = context.__enter__()
        self._context = context
        if self._token < self._fence.seen:
            self.leave(False)
            raise Stale(self._token, self._fence.seen)

    def leave(self, counts: bool) -> None:
        """Stores the token if it counts. The context ends without an exception, so that no transaction of the store
        is rolled back after a write that may have happened."""
        context, self._context = self._context, None
        if context is not None:
            if counts:
                self._fence.check(self._token)
            context.__exit__(None, None, None)


class _Gate:
    """What both kinds of middleware share: the tokens of a service, and its refusals."""

    def __init__(self, locks: Sequence[str], store: Optional[Store]) -> None:
        # Only locks that guard this service: another lock's token says nothing about it.
        self._locks = {quote(lock): _Turns(lock, store) for lock in ([locks] if isinstance(locks, str) else locks)}

    def admit(self, values: Sequence[str]) -> Tuple[Optional[_Turns], int, str, str]:
        """The turns of the lock, the token, and the status and text of a refusal, for all headers of a request."""
        if not values:
            return None, 0, "428 Precondition Required", f"send the header {HEADER}: LOCK;TOKEN\n"
        name, _, digits = values[0].partition(";")
        turns = self._locks.get(name)
        is_token = len(values) == 1 and re.fullmatch("[0-9]{1,19}", digits) is not None
        if turns is None or not is_token or int(digits) > TOKEN_MAX:
            return None, 0, "400 Bad Request", f"{HEADER} is not one LOCK;TOKEN of a lock that guards this service\n"
        return turns, int(digits), "", ""


def _late(token: int) -> str:
    return f"stale token {token}: a later holder has been here, so the lock is lost\n"


BUSY = "503 Service Unavailable", "requests of another holder have not ended\n"


class FenceWSGI:
    """WSGI middleware: requests that change something need the header Rowlock-Fence. 412 for a late holder, 428
    without the header, 400 for another lock or a malformed header, 503 while requests of another holder do not end.

    A request counts as under way until its response is closed. Its token counts unless the status is a 4xx: put
    authentication in front all the same. `store` is for services of several processes: it keeps the stored token of
    the lock locked while the request is under way (docs/fencing.md).
    """

    def __init__(self, app: Callable[..., Any], locks: Sequence[str], store: Optional[Store] = None) -> None:
        self._app = app
        self._gate = _Gate(locks, store)

    def __call__(self, environ: Dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] in SAFE:
            return self._app(environ, start_response)  # type: ignore[no-any-return]
        # Servers join headers of one name by commas, which no token has.
        value = environ.get("HTTP_ROWLOCK_FENCE")
        turns, token, status, text = self._gate.admit([] if value is None else [value])
        if turns is not None:
            try:
                return self._run(turns, token, environ, start_response)
            except _Late:
                status, text = "412 Precondition Failed", _late(token)
            except _Busy:
                status, text = BUSY
        body = text.encode()
        start_response(status, [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
        return [body]

    def _run(
        self, turns: _Turns, token: int, environ: Dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        try:
            turn = turns.begin(token)
        except Stale:
            raise _Late from None
        entry = _Entry(turns, token)
        try:
            turns.wait(turn)
            entry.enter()
        except BaseException as error:
            turns.end(turn, False)
            if isinstance(error, Stale):
                raise _Late from None
            if isinstance(error, TimeoutError):
                raise _Busy from None
            raise
        said: List[Optional[int]] = [None]

        def starts(status: str, *more: Any, **named: Any) -> Any:
            said[0] = int(status[:3])
            return start_response(status, *more, **named)

        def ends(status: Optional[int]) -> None:
            try:
                entry.leave(_counts(status))
            finally:
                turns.end(turn, _counts(status))

        try:
            return _Closing(self._app(environ, starts), lambda: ends(said[0]))
        except BaseException:
            ends(None)
            raise


class _Closing:
    """A response whose request is over when the server closes it."""

    def __init__(self, body: Iterable[bytes], end: Callable[[], None]) -> None:
        self._body, self._end = body, end

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._body)

    def close(self) -> None:
        """Is called by the server once the response is sent, or its client has gone."""
        try:
            close = getattr(self._body, "close", None)
            if close is not None:
                close()
        finally:
            end, self._end = self._end, lambda: None
            end()


class FenceASGI:
    """ASGI middleware: as `FenceWSGI`. `store` is entered and left in one thread of its own for each lock."""

    def __init__(self, app: Callable[..., Awaitable[None]], locks: Sequence[str], store: Optional[Store] = None):
        self._app = app
        self._gate = _Gate(locks, store)

    async def __call__(self, scope: Dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] in SAFE:
            await self._app(scope, receive, send)
            return
        name = HEADER.lower().encode()
        values = [value.decode("latin-1") for key, value in scope["headers"] if key.lower() == name]
        turns, token, status, said = self._gate.admit(values)
        if turns is not None:
            try:
                await self._run(turns, token, (scope, receive, send))
                return
            except _Late:
                status, said = "412 Precondition Failed", _late(token)
            except _Busy:
                status, said = BUSY
        body = said.encode()
        headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": int(status[:3]), "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _run(self, turns: _Turns, token: int, call: Tuple[Any, Any, Any]) -> None:
        scope, receive, send = call
        try:
            turn = turns.begin(token)
        except Stale:
            raise _Late from None
        entry = _Entry(turns, token)
        # Until it has its turn, it has refused itself.
        status: Optional[int] = 412
        try:
            await self._wait(turns, turn, entry)
            status = None

            async def sends(message: Any) -> None:
                nonlocal status
                if message["type"] == "http.response.start":
                    status = message["status"]
                await send(message)

            await self._app(scope, receive, sends)
        finally:
            try:
                # Runs behind an `enter` that a canceled request has left in the thread.
                await asyncio.shield(self._in_thread(turns, lambda: entry.leave(_counts(status))))
            finally:
                turns.end(turn, _counts(status))

    async def _wait(self, turns: _Turns, turn: _Turn, entry: _Entry) -> None:
        until = time.monotonic() + ENTER_MAX
        try:
            # No thread is kept for the wait: the loop's few threads may be what the earlier requests need.
            while not turns.is_first(turn):
                if time.monotonic() >= until:
                    raise TimeoutError
                await asyncio.sleep(0.01)
            turns.still(turn)
            await self._in_thread(turns, entry.enter)
        except Stale:
            raise _Late from None
        except TimeoutError:
            raise _Busy from None

    def _in_thread(self, turns: _Turns, call: Callable[[], None]) -> "asyncio.Future[None]":
        loop = asyncio.get_running_loop()
        if turns.store is not None:
            return loop.run_in_executor(turns.thread, call)
        done: "asyncio.Future[None]" = loop.create_future()
        done.set_result(call())
        return done


class _Late(Exception):
    pass


class _Busy(Exception):
    pass
