"""Requests to one node after another until one answers. It knows no locks."""

import http.client
import io
import json
import os
import re
import socket
import ssl
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union
from urllib.parse import SplitResult, quote, urlsplit

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
# Levels of a document: those of the API have four.
DEPTH_MAX = 32
# Seconds for which answers at all URLs may be something else's than a node's before a request fails.
STRANGE_MAX = 15.0
# Characters of a strange answer in a message.
LINE_MAX = 200
# Unwaited releases under way, each with a thread; the next release is waited for.
UNWAITED_MAX = 64


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


def is_token(value: Any) -> bool:
    """Whether it is a fencing token as the API writes it."""
    return isinstance(value, str) and re.fullmatch("[0-9]{1,19}", value) is not None


def document(text: bytes) -> Json:
    """The object in an answer. Raises `ValueError` for what no node sends."""
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueError("too many levels") from None
    if not isinstance(found, dict):
        raise ValueError("no JSON object")
    level: List[Any] = [found]
    for _ in range(DEPTH_MAX):
        level = [each for one in level for each in (one.values() if isinstance(one, dict) else one)
                 if isinstance(each, (dict, list))]
    if level:
        raise ValueError("too many levels")
    return found


class Strange(Exception):
    """An answer that is no document of the API: `line` is the first of its text, without the tags of HTML."""

    def __init__(self, status: int, text: bytes) -> None:
        plain = re.sub(r"<[^>]*>", " ", text[:4096].decode("utf-8", "replace"))
        lines = [re.sub("[^ -~]", " ", line).strip() for line in plain.splitlines()]
        self.status = status
        self.line = next((line[:LINE_MAX] for line in lines if line), "an empty answer")
        super().__init__(f"{status} {self.line}")

    @property
    def refused(self) -> Refused:
        """The refusal that it is if no other try can help."""
        return Refused(self.status, {"detail": self.line})

    @property
    def is_final(self) -> bool:
        """Whether another try makes no sense: for 404, 408 and 429 another node or moment may."""
        return 400 <= self.status < 500 and self.status not in (404, 408, 429)


class Transport:
    """The nodes of a cluster. Safe for threads."""

    def __init__(self, urls: Union[str, Sequence[str]], token: Optional[str], tls: Optional[ssl.SSLContext]):
        self._nodes = [urlsplit(url) for url in ([urls] if isinstance(urls, str) else urls)]
        for node in self._nodes:
            if node.scheme not in ("http", "https") or not node.hostname:
                raise ValueError(f"not the URL of a node: {node.geturl()}")
            if node.query or node.fragment or node.username is not None:
                raise ValueError(f"the URL of a node has a user, a query or a fragment: {node.geturl()}")
        if not self._nodes:
            raise ValueError("no URL of a node")
        self._addresses = [address(node) for node in self._nodes]
        # The path of a URL, such as that of a gateway, stands before that of each request.
        self._prefixes = [quote(node.path.rstrip("/"), safe="/%:@!$&'()*+,;=~") for node in self._nodes]
        self._token = token
        self._tls = tls
        self._at = 0
        # Until when no leader is followed.
        self._stays_until = 0.0
        self._idle = Idle()
        self._unwaited: List[Unwaited] = []

    def later(self, path: str, release: Callable[[], Any], end: Callable[[], Any]) -> None:
        """Runs `release`, then `end`, in a thread for which the end of the program waits. Runs them here where
        `UNWAITED_MAX` threads do so already, or no thread is left."""
        entry = Unwaited(path)
        self._unwaited.append(entry)
        is_full = len(self._unwaited_here()) > UNWAITED_MAX

        def run() -> None:
            try:
                release()
                entry.answered.set()
                end()
            finally:
                self._unwaited.remove(entry)
                entry.answered.set()
                entry.done.set()

        if not is_full:
            try:
                threading.Thread(target=run, name="rowlock release", daemon=False).start()
                return
            except RuntimeError:
                pass
        run()

    def behind(self, path: str, until: float, over: threading.Event) -> None:
        """Waits for the answers to the releases of `later` on this path; until a moment of `now`, or `over`, at most."""
        for entry in self._unwaited_here():
            while entry.path == path and not over.is_set() and now() < until:
                if entry.answered.wait(max(0.0, min(until - now(), OVER_EVERY))):
                    break

    def flush(self, until: float) -> bool:
        """Waits for all work of `later`, until a moment of `now` at most. Returns False if some is left."""
        return all(entry.done.wait(min(max(0.0, until - now()), threading.TIMEOUT_MAX)) for entry in self._unwaited_here())

    def _unwaited_here(self) -> "List[Unwaited]":
        """Those of this process: a fork has none of the threads."""
        return [entry for entry in list(self._unwaited) if entry.pid == os.getpid()]

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
        `until` or when it is over, and `Refused` for all refusals but 404, and where something that is no node
        answers in their place for `STRANGE_MAX`.
        """
        failed = "no node was asked"
        tried = 0
        strange_since = float("inf")
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
                strange_since = float("inf")
            except Strange as strange:
                failed = str(strange)
                strange_since = min(strange_since, now())
                if strange.is_final or now() - STRANGE_MAX > strange_since:
                    raise strange.refused from None
            except (OSError, http.client.HTTPException, ValueError) as error:
                # A request that the end of the caller's time has cut off says nothing of its node.
                if tried == 0 or now() < until:
                    failed = repr(error)
                strange_since = float("inf")
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
                connection.until = deadline
                # Connecting and sending take this time at most, and each step of reading what is left of it.
                connection.timeout = max(0.001, deadline - now())
                if connection.sock is not None:
                    connection.sock.settimeout(connection.timeout)
                answer = self._ask(connection, method, self._prefixes[at] + path, body, headers)
            except BaseException as error:
                connection.close()
                # The node has closed a connection that rested. The request may be repeated.
                if is_kept and isinstance(error, CLOSED) and now() < deadline:
                    continue
                raise
            self._idle.give(at, connection)
            return answer

    def _connect(self, at: int) -> "Connection":
        node = self._nodes[at]
        host = node.hostname or ""
        if node.scheme == "https":
            return SecureConnection(host, node.port, context=self._tls)
        return Connection(host, node.port)

    def _ask(
        self,
        connection: "Connection",
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
        try:
            # Errors of the API have documents.
            return response.status, document(text) if text or response.status >= 400 else {}
        except ValueError:
            raise Strange(response.status, text) from None

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


class Unwaited:
    """A release under way that no caller waits for."""

    def __init__(self, path: str) -> None:
        self.pid, self.path = os.getpid(), path
        # Set when a node has answered, or the lease is over.
        self.answered = threading.Event()
        # Set when the lease is given back, too.
        self.done = threading.Event()


class Connection(http.client.HTTPConnection):
    """One whose answers are read until a moment of `now`, however slowly their bytes come."""

    until = float("inf")

    def response_class(self, sock: socket.socket, *args: Any, **named: Any) -> http.client.HTTPResponse:  # type: ignore[override]
        return http.client.HTTPResponse(_Bounded(sock, self.until), *args, **named)  # type: ignore[arg-type]


class SecureConnection(Connection, http.client.HTTPSConnection):
    """The same by TLS."""


class _Bounded:
    """A socket as a response uses it."""

    def __init__(self, sock: socket.socket, until: float) -> None:
        self._sock, self._until = sock, until

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Steps(self._sock, self._until))


class _Steps(io.RawIOBase):
    """Reads what has come. Invariant: a socket's timeout is that of one step, so each gets what is left."""

    def __init__(self, sock: socket.socket, until: float) -> None:
        # It keeps the socket open when the connection lets go of it.
        self._sock, self._file, self._until = sock, sock.makefile("rb", buffering=0), until

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> Optional[int]:
        left = self._until - now()
        if left <= 0:
            raise TimeoutError("the answer has not ended in time")
        self._sock.settimeout(left)
        return self._file.readinto(buffer)

    def close(self) -> None:
        self._file.close()
        super().close()


class Idle:
    """Connections that carry no request at the moment. Safe for threads and for programs that fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        # Each with the node and the moment of its last answer, the newest last.
        self._kept: List[Tuple[int, float, Connection]] = []

    def take(self, at: int) -> Optional[Tuple[Connection, bool]]:
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

    def give(self, at: int, connection: Connection) -> None:
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
