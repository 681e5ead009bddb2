"""The same for asyncio. Requests run in threads: the standard library has no HTTP for asyncio."""

import asyncio
import contextvars
from concurrent.futures import Future
import threading
from types import TracebackType
from typing import Any, Callable, Optional, Type, TypeVar

from .client import Guard, Lock, Rowlock
from .errors import RowlockError

T = TypeVar("T")


async def _in_thread(work: Callable[[], T]) -> T:
    """Runs in a thread of its own: attempts that wait must not use up the loop's few threads."""
    future: "Future[T]" = Future()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    # With the caller's context: a span of an observer is a child of the caller's.
    context = contextvars.copy_context()
    threading.Thread(target=lambda: context.run(run), daemon=True).start()
    result = asyncio.wrap_future(future)
    # The error of work that nobody waits for any more is no news.
    result.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await asyncio.shield(result)


class AsyncRowlock:
    """Takes what `Rowlock` takes: `async with AsyncRowlock(url).lock("x", timeout=5) as guard`."""

    def __init__(self, *args: Any, **named: Any) -> None:
        self._client = Rowlock(*args, **named)

    @classmethod
    def from_env(cls, **options: Any) -> "AsyncRowlock":
        """A client by the variables of `Rowlock.from_env`."""
        it = cls.__new__(cls)
        it._client = Rowlock.from_env(**options)
        return it

    def lock(self, *args: Any, **named: Any) -> "AsyncLock":
        """Takes what `Rowlock.lock` takes."""
        return AsyncLock(self._client.lock(*args, **named))

    async def flush(self, timeout: Optional[float] = None) -> bool:
        """Waits as `Rowlock.flush` does."""
        return await _in_thread(lambda: self._client.flush(timeout))

    async def ask(self, *args: Any, **named: Any) -> int:
        """Takes and gives what `Rowlock.ask` does. `Guard.until_asked` is the other end."""
        return await _in_thread(lambda: self._client.ask(*args, **named))


class AsyncLock:
    """As `Lock`. When a task is cancelled that waits for it, its place in the queue is given back."""

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self._guard: Optional[Guard] = None

    async def acquire(self) -> Guard:
        """As `Lock.acquire`. The guard's `release` blocks for a request; `async with` waits for none."""
        attempt = self._lock._begin()
        try:
            return await _in_thread(attempt.finish)
        except asyncio.CancelledError:
            threading.Thread(target=attempt.abort, daemon=True).start()
            raise

    async def __aenter__(self) -> Guard:
        # Not reentrant, as `Lock`.
        if self._guard is not None and not self._guard.lost:
            raise RowlockError("this AsyncLock is held already: make another one with AsyncRowlock.lock")
        self._guard = await self.acquire()
        return self._guard

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        guard, self._guard = self._guard, None
        if guard is not None:
            await _in_thread(guard.release_later)
