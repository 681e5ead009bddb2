"""Refuses late holders: `Fence` in a program, `FenceWSGI` and `FenceASGI` in front of a web service."""

import asyncio
import re
import threading
import time
from contextlib import contextmanager
from typing import Any, Awaitable, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple
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

# Compares and remembers a token of a lock where all processes of a service see it; whether it was not smaller.
Store = Callable[[str, int], bool]


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


class _Turn:
    """A request that is under way, or waits until it may be."""

    def __init__(self, token: int) -> None:
        self.token = token


class _Turns:
    """The requests of one lock in their order: those of one token run together, and those of another token wait.

    Invariant: a token counts from the end of a request that the service has not refused. Until then nothing says that
    its sender may write at all, so smaller tokens behind it wait for that answer.
    """

    def __init__(self) -> None:
        self.seen = 0
        self._changed = threading.Condition()
        self._turns: List[_Turn] = []

    def begin(self, token: int) -> _Turn:
        with self._changed:
            turn = _Turn(token)
            self.still(turn)
            self._turns.append(turn)
            return turn

    def is_first(self, turn: _Turn) -> bool:
        """Whether all requests before it have its token."""
        before = self._turns[:self._turns.index(turn)]
        return all(other.token == turn.token for other in before)

    def still(self, turn: _Turn) -> None:
        if turn.token < self.seen:
            raise Stale(turn.token, self.seen)

    def wait(self, turn: _Turn) -> None:
        """Waits for the requests before it. Raises `Stale`, or `TimeoutError` after `ENTER_MAX`."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.is_first(turn), ENTER_MAX):
                raise TimeoutError("requests of another holder have not ended")
            self.still(turn)

    def end(self, turn: _Turn, status: Optional[int]) -> None:
        """A 4xx is a refusal, which has written nothing; any other end, also an exception, may have written."""
        with self._changed:
            self._turns.remove(turn)
            if status is None or not 400 <= status < 500:
                self.seen = max(self.seen, turn.token)
            self._changed.notify_all()


class _Gate:
    """What both kinds of middleware share: the tokens of a service, and its refusals."""

    def __init__(self, locks: Sequence[str], store: Optional[Store]) -> None:
        # Only locks that guard this service: another lock's token says nothing about it.
        self._locks = {quote(lock): (lock, _Turns()) for lock in ([locks] if isinstance(locks, str) else locks)}
        self._store = store

    def admit(self, values: Sequence[str]) -> Tuple[Optional[_Turns], int, str, str]:
        """The turns of the lock, the token, and the status and text of a refusal, for all headers of a request."""
        if not values:
            return None, 0, "428 Precondition Required", f"send the header {HEADER}: LOCK;TOKEN\n"
        name, _, digits = values[0].partition(";")
        lock, turns = self._locks.get(name, ("", None))
        is_token = len(values) == 1 and re.fullmatch("[0-9]{1,19}", digits) is not None
        if turns is None or not is_token or int(digits) > TOKEN_MAX:
            return None, 0, "400 Bad Request", f"{HEADER} is not one LOCK;TOKEN of a lock that guards this service\n"
        token = int(digits)
        if self._store is not None and not self._store(lock, token):
            return None, token, "412 Precondition Failed", _late(token)
        return turns, token, "", ""


def _late(token: int) -> str:
    return f"stale token {token}: a later holder has been here, so the lock is lost\n"


BUSY = "503 Service Unavailable", "requests of another holder have not ended\n"


class FenceWSGI:
    """WSGI middleware: requests that change something need the header Rowlock-Fence. 412 for a late holder, 428
    without the header, 400 for another lock or a malformed header, 503 while requests of another holder do not end.

    A request counts as under way until its response is closed. Its token counts unless the status is a 4xx: put
    authentication in front all the same. `store` is for services of several processes. It remembers a token before
    the service is called, so it must stand behind authentication.
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
        try:
            turns.wait(turn)
        except BaseException as error:
            # It has not come to its turn, and so has refused itself.
            turns.end(turn, 412)
            if isinstance(error, Stale):
                raise _Late from None
            if isinstance(error, TimeoutError):
                raise _Busy from None
            raise
        said: List[Optional[int]] = [None]

        def starts(status: str, *more: Any, **named: Any) -> Any:
            said[0] = int(status[:3])
            return start_response(status, *more, **named)

        try:
            return _Closing(self._app(environ, starts), lambda: turns.end(turn, said[0]))
        except BaseException:
            turns.end(turn, None)
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
    """ASGI middleware: as `FenceWSGI`. `store` is called in a thread."""

    def __init__(self, app: Callable[..., Awaitable[None]], locks: Sequence[str], store: Optional[Store] = None):
        self._app = app
        self._gate = _Gate(locks, store)

    async def __call__(self, scope: Dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] in SAFE:
            await self._app(scope, receive, send)
            return
        name = HEADER.lower().encode()
        values = [value.decode("latin-1") for key, value in scope["headers"] if key.lower() == name]
        turns, token, status, said = await asyncio.to_thread(self._gate.admit, values)
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
        until = time.monotonic() + ENTER_MAX
        scope, receive, send = call
        # Until it has its turn, it has refused itself.
        status: Optional[int] = 412
        try:
            turn = turns.begin(token)
        except Stale:
            raise _Late from None
        try:
            # No thread is kept for the wait: the loop's few threads may be what the earlier requests need.
            while not turns.is_first(turn):
                if time.monotonic() >= until:
                    raise _Busy
                await asyncio.sleep(0.01)
            try:
                turns.still(turn)
            except Stale:
                raise _Late from None
            status = None

            async def sends(message: Any) -> None:
                nonlocal status
                if message["type"] == "http.response.start":
                    status = message["status"]
                await send(message)

            await self._app(scope, receive, sends)
        finally:
            turns.end(turn, status)


class _Late(Exception):
    pass


class _Busy(Exception):
    pass
