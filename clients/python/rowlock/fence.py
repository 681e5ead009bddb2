"""Refuses late holders: `Fence` in a program, `FenceWSGI` and `FenceASGI` in front of a web service."""

import asyncio
import threading
import time
from contextlib import contextmanager
from typing import Any, Awaitable, Callable, Dict, Iterable, Iterator, Optional, Sequence, Tuple
from urllib.parse import quote

from .errors import Stale

# In which a token travels to a service: the lock, percent-encoded, a semicolon, the token.
HEADER = "Rowlock-Fence"
# Seconds for which a holder waits at most until writes with smaller tokens have ended.
ENTER_MAX = 30.0
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


class _Gate:
    """What both kinds of middleware share: the fences of a service, and its refusals."""

    def __init__(self, locks: Sequence[str], store: Optional[Store]) -> None:
        # Only locks that guard this service: another lock's token says nothing about it.
        self._fences = {quote(lock): (lock, Fence()) for lock in ([locks] if isinstance(locks, str) else locks)}
        self._store = store

    def fence(self, value: Optional[str]) -> Tuple[Optional[Fence], int, str, str]:
        """The fence, the token, and the status and text of a refusal."""
        if value is None:
            return None, 0, "428 Precondition Required", f"send the header {HEADER}: LOCK;TOKEN\n"
        name, _, digits = value.partition(";")
        lock, fence = self._fences.get(name, ("", None))
        if fence is None or not (digits.isascii() and digits.isdigit()):
            return None, 0, "400 Bad Request", f"{HEADER} is not LOCK;TOKEN of a lock that guards this service\n"
        token = int(digits)
        if self._store is not None and not self._store(lock, token):
            return None, token, "412 Precondition Failed", _late(token)
        return fence, token, "", ""


def _late(token: int) -> str:
    return f"stale token {token}: a later holder has been here, so the lock is lost\n"


BUSY = "503 Service Unavailable", "requests of an earlier holder have not ended\n"


class FenceWSGI:
    """WSGI middleware: requests that change something need the header Rowlock-Fence. 412 for a late holder, 428
    without the header, 400 for another lock, 503 while requests of an earlier holder do not end.

    A request counts as under way until its response is closed. `store` is for services of several processes.
    """

    def __init__(self, app: Callable[..., Any], locks: Sequence[str], store: Optional[Store] = None) -> None:
        self._app = app
        self._gate = _Gate(locks, store)

    def __call__(self, environ: Dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] in SAFE:
            return self._app(environ, start_response)  # type: ignore[no-any-return]
        fence, token, status, text = self._gate.fence(environ.get("HTTP_ROWLOCK_FENCE"))
        if fence is not None:
            entered = fence.enter(token)
            try:
                entered.__enter__()
            except Stale:
                status, text = "412 Precondition Failed", _late(token)
            except TimeoutError:
                status, text = BUSY
            else:
                try:
                    return _Closing(self._app(environ, start_response), entered)
                except BaseException:
                    entered.__exit__(None, None, None)
                    raise
        body = text.encode()
        start_response(status, [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
        return [body]


class _Closing:
    """A response whose request is over when the server closes it."""

    def __init__(self, body: Iterable[bytes], entered: Any) -> None:
        self._body, self._entered = body, entered

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._body)

    def close(self) -> None:
        """Is called by the server once the response is sent, or its client has gone."""
        try:
            close = getattr(self._body, "close", None)
            if close is not None:
                close()
        finally:
            entered, self._entered = self._entered, None
            if entered is not None:
                entered.__exit__(None, None, None)


class FenceASGI:
    """ASGI middleware: as `FenceWSGI`. `store` is called in a thread."""

    def __init__(self, app: Callable[..., Awaitable[None]], locks: Sequence[str], store: Optional[Store] = None):
        self._app = app
        self._gate = _Gate(locks, store)

    async def __call__(self, scope: Dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] in SAFE:
            await self._app(scope, receive, send)
            return
        value = dict(scope["headers"]).get(HEADER.lower().encode())
        text = None if value is None else value.decode("latin-1")
        fence, token, status, said = await asyncio.to_thread(self._gate.fence, text)
        if fence is not None:
            try:
                await self._run(fence, token, (scope, receive, send))
                return
            except Stale:
                status, said = "412 Precondition Failed", _late(token)
            except _Busy:
                status, said = BUSY
        body = said.encode()
        headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": int(status[:3]), "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _run(self, fence: Fence, token: int, call: Tuple[Any, Any, Any]) -> None:
        until = time.monotonic() + ENTER_MAX
        fence._begin(token)
        try:
            # No thread is kept for the wait: the loop's few threads may be what the earlier requests need.
            while not fence._is_first(token):
                if time.monotonic() >= until:
                    raise _Busy
                await asyncio.sleep(0.01)
            fence._still(token)
            try:
                await self._app(*call)
            except Stale as error:
                # The service's own affair: part of its response may have been sent.
                raise RuntimeError("the service has let an error of its own fence pass") from error
        finally:
            fence._leave(token)


class _Busy(Exception):
    pass
