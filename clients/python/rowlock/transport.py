"""Requests to one node after another until one answers. It knows no locks."""

import http.client
import json
import os
import ssl
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union
from urllib.parse import SplitResult, urlsplit

from .errors import Refused, TimedOut

Json = Dict[str, Any]
Answer = Tuple[int, Json]
# Whether a status and a document are an answer of this API to the request.
Wants = Callable[[int, Json], bool]
# Seconds that a node may take for an answer, on top of the time for which it was asked to wait.
ANSWER_MAX = 10.0
# Seconds between two rounds through all nodes.
PAUSE = 0.2
# Seconds after which a connection that rests is not used any more: nodes close it after 120.
REST_MAX = 60.0
# Seconds after which a thread that waits for another one looks whether it is over.
OVER_EVERY = 0.1
# Connections that are kept.
KEPT_MAX = 32
# How a request ends on a connection that the node has closed.
CLOSED = (ConnectionError, http.client.RemoteDisconnected)
# Seconds between two moves to a leader: it may be out of reach from here.
STAY = 60.0
# Bytes of an answer that are read at most.
BODY_MAX = 1 << 20


def now() -> float:
    """Seconds on a clock that also runs while the machine sleeps, where there is one: leases do, too."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def milliseconds(value: Any) -> Optional[float]:
    """A span of time in an answer; None if it is no finite number."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if is_number and 0 <= value <= 2**53 else None


def address(node: SplitResult) -> str:
    """Host and port of a node's URL."""
    host, default = node.hostname or "", 443 if node.scheme == "https" else 80
    return f"{f'[{host}]' if ':' in host else host}:{node.port or default}"


def is_text(value: Any) -> bool:
    """Whether it is a text with at least one character."""
    return isinstance(value, str) and value != ""


class Transport:
    """The nodes of a cluster. Safe for threads."""

    def __init__(self, urls: Union[str, Sequence[str]], token: Optional[str], tls: Optional[ssl.SSLContext]):
        self._nodes = [urlsplit(url) for url in ([urls] if isinstance(urls, str) else urls)]
        for node in self._nodes:
            if node.scheme not in ("http", "https") or not node.hostname:
                raise ValueError(f"not the URL of a node: {node.geturl()}")
        if not self._nodes:
            raise ValueError("no URL of a node")
        self._addresses = [address(node) for node in self._nodes]
        self._token = token
        self._tls = tls
        self._at = 0
        # Until when no leader is followed.
        self._stays_until = 0.0
        self._idle = Idle()
        # Releases under way: the process and the path of each, and its end.
        self._later: List[Tuple[int, str, threading.Event]] = []

    def later(self, path: str, work: Callable[[], Any]) -> None:
        """Does the work in a thread, for which the end of the program waits."""
        entry = (os.getpid(), path, threading.Event())
        self._later.append(entry)

        def run() -> None:
            try:
                work()
            finally:
                self._later.remove(entry)
                entry[2].set()

        try:
            threading.Thread(target=run, name="rowlock release", daemon=False).start()
        except RuntimeError:
            # No threads are left.
            run()

    def behind(self, path: str, until: float, over: threading.Event) -> None:
        """Waits for the work of `later` on this path; until a moment of `now`, or `over`, at most."""
        for pid, other, done in list(self._later):
            while pid == os.getpid() and other == path and not over.is_set() and now() < until:
                if done.wait(max(0.0, min(until - now(), OVER_EVERY))):
                    break

    def share(self, left: float) -> float:
        """The part of the seconds that are left which one node may use up: others are to be asked, too."""
        return left / len(self._nodes)

    def call(
        self,
        method: str,
        path: str,
        body: Union[Json, bytes],
        until: float,
        each: Optional[float] = None,
        wants: Wants = lambda _status, _answer: True,
        over: Optional[threading.Event] = None,
        headers: Optional[Dict[str, str]] = None,
    ) -> Answer:
        """Asks one node after another until one answers. The request must be one that may be repeated.

        `until` is a moment of `now`: nothing is sent after it, nor when `over` is set. `each` bounds one node's
        answer, in seconds. What `wants` does not take is no answer: a proxy may have made it. Raises `TimedOut` after
        `until` or when it is over, and `Refused` for all refusals but 404.
        """
        failed = "no node was asked"
        tried = 0
        if each is None:
            each = min(ANSWER_MAX, self.share(until - now()))
        over = over or threading.Event()
        while True:
            left = until - now()
            if left <= 0 or over.is_set():
                raise TimedOut(f"no node has answered in time; the last one: {failed}")
            at = self._at % len(self._nodes)
            try:
                status, answer = self._once(at, method, path, body, min(left, each), headers or {})
                if 400 <= status < 500 and status != 404:
                    raise Refused(status, answer)
                if status < 500 and wants(status, answer):
                    return status, answer
                failed = f"{status} {answer.get('detail', 'not an answer of this API')}"
            except (OSError, http.client.HTTPException, ValueError) as error:
                failed = repr(error)
            # At the end of the caller's time the node is not to blame. Another thread may have gone on already.
            if now() < until and self._at % len(self._nodes) == at:
                self._at = at + 1
            tried += 1
            if tried % len(self._nodes) == 0:
                over.wait(max(0.0, min(PAUSE, until - now())))

    def _once(
        self, at: int, method: str, path: str, body: Union[Json, bytes], timeout: float, headers: Dict[str, str]
    ) -> Answer:
        deadline = now() + timeout
        while True:
            connection, is_kept = self._idle.take(at) or (self._connect(at), False)
            try:
                # A socket's timeout is that of one step; the whole answer comes in one or two.
                connection.timeout = max(0.001, deadline - now())
                if connection.sock is not None:
                    connection.sock.settimeout(connection.timeout)
                answer = self._ask(connection, method, path, body, headers)
            except BaseException as error:
                connection.close()
                # The node has closed a connection that rested. The request may be repeated.
                if is_kept and isinstance(error, CLOSED) and now() < deadline:
                    continue
                raise
            self._idle.give(at, connection)
            return answer

    def _connect(self, at: int) -> http.client.HTTPConnection:
        node = self._nodes[at]
        host = node.hostname or ""
        if node.scheme == "https":
            return http.client.HTTPSConnection(host, node.port, context=self._tls)
        return http.client.HTTPConnection(host, node.port)

    def _ask(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: Union[Json, bytes],
        more: Dict[str, str],
    ) -> Answer:
        is_data = isinstance(body, bytes)
        headers = {"Content-Type": "application/octet-stream" if is_data else "application/json", **more}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        if len(self._nodes) > 1 and now() >= self._stays_until:
            headers["Prefer"] = "leader"
        connection.request(method, path, body if is_data else json.dumps(body), headers)
        response = connection.getresponse()
        self._follow(response.getheader("Rowlock-Leader"))
        text = response.read(BODY_MAX)
        if not response.isclosed():
            # Invariant: no connection is kept whose answer was not read to its end.
            connection.close()
        answer = json.loads(text) if text else {}
        if not isinstance(answer, dict):
            raise ValueError("the answer is no JSON object")
        return response.status, answer

    def _follow(self, leader: Optional[str]) -> None:
        """Goes to the leader that a node names, if it is one of these nodes."""
        if leader is None or now() < self._stays_until:
            return
        self._stays_until = now() + STAY
        if leader.lower() in self._addresses:
            self._at = self._addresses.index(leader.lower())

    def close(self) -> None:
        """Closes the connections that rest. The transport can be used on."""
        self._idle.close()

    def __del__(self) -> None:
        if hasattr(self, "_idle"):
            self._idle.close()


class Idle:
    """Connections that carry no request at the moment. Safe for threads and for programs that fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        # Each with the node and the moment of its last answer, the newest last.
        self._kept: List[Tuple[int, float, http.client.HTTPConnection]] = []

    def take(self, at: int) -> Optional[Tuple[http.client.HTTPConnection, bool]]:
        """A connection to this node, and that it was kept; None: there is none."""
        self._check()
        with self._lock:
            old = [kept for kept in self._kept if now() - kept[1] > REST_MAX]
            self._kept = [kept for kept in self._kept if kept not in old]
            found = next((kept for kept in reversed(self._kept) if kept[0] == at), None)
            if found is not None:
                self._kept.remove(found)
        for _, _, connection in old:
            connection.close()
        return None if found is None else (found[2], True)

    def give(self, at: int, connection: http.client.HTTPConnection) -> None:
        """Keeps a connection that is not closed."""
        if connection.sock is None:
            return
        with self._lock:
            if len(self._kept) < KEPT_MAX:
                self._kept.append((at, now(), connection))
                return
        connection.close()

    def close(self) -> None:
        with self._lock:
            kept, self._kept = self._kept, []
        for _, _, connection in kept:
            connection.close()

    def _check(self) -> None:
        """A fork shares the sockets of its parent: one would read the answers of the other."""
        if self._pid != os.getpid():
            # Another thread of the parent may have had the lock.
            self._lock, self._pid = threading.Lock(), os.getpid()
            self.close()
