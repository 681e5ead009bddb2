"""Requests to one node after another until one answers. It knows no locks."""

import http.client
import json
import ssl
import time
from typing import Any, Dict, Optional, Sequence, Tuple, Union
from urllib.parse import urlsplit

from .errors import Refused, TimedOut

Json = Dict[str, Any]
Answer = Tuple[int, Json]
# Seconds that a node may take for an answer, on top of the time for which it was asked to wait.
ANSWER_MAX = 10.0
# Seconds between two rounds through all nodes.
PAUSE = 0.2
# Bytes of an answer that are read at most.
BODY_MAX = 1 << 20


def now() -> float:
    """Seconds on a clock that also runs while the machine sleeps, where there is one: leases do, too."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class Transport:
    """The nodes of a cluster. Safe for threads."""

    def __init__(self, urls: Union[str, Sequence[str]], token: Optional[str], tls: Optional[ssl.SSLContext]):
        self._nodes = [urlsplit(url) for url in ([urls] if isinstance(urls, str) else urls)]
        for node in self._nodes:
            if node.scheme not in ("http", "https") or not node.hostname:
                raise ValueError(f"not the URL of a node: {node.geturl()}")
        if not self._nodes:
            raise ValueError("no URL of a node")
        self._token = token
        self._tls = tls
        self._at = 0

    def call(self, method: str, path: str, body: Json, until: float, each: float = ANSWER_MAX) -> Answer:
        """Asks one node after another until one answers. The request must be one that may be repeated.

        `until` is a moment of `now`: nothing is sent after it. `each` bounds one node's answer, in seconds.
        Raises `TimedOut` after `until`, and `Refused` for all refusals but 404.
        """
        failed = "no node was asked"
        tried = 0
        while True:
            left = until - now()
            if left <= 0:
                raise TimedOut(f"no node has answered in time; the last one: {failed}")
            at = self._at % len(self._nodes)
            try:
                status, answer = self._once(at, method, path, body, min(left, each))
                if status < 500:
                    break
                failed = f"{status} {answer.get('detail', '')}"
            except (OSError, http.client.HTTPException, ValueError) as error:
                failed = repr(error)
            # Another thread may have gone on to the next node already.
            if self._at % len(self._nodes) == at:
                self._at = at + 1
            tried += 1
            if tried % len(self._nodes) == 0:
                time.sleep(max(0.0, min(PAUSE, until - now())))
        if status >= 400 and status != 404:
            raise Refused(status, answer)
        return status, answer

    def _once(self, at: int, method: str, path: str, body: Json, timeout: float) -> Answer:
        node = self._nodes[at]
        host = node.hostname or ""
        connection: http.client.HTTPConnection
        if node.scheme == "https":
            connection = http.client.HTTPSConnection(host, node.port, timeout=timeout, context=self._tls)
        else:
            connection = http.client.HTTPConnection(host, node.port, timeout=timeout)
        headers = {"Content-Type": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            connection.request(method, path, json.dumps(body), headers)
            response = connection.getresponse()
            text = response.read(BODY_MAX)
            answer = json.loads(text) if text else {}
            if not isinstance(answer, dict):
                raise ValueError("the answer is no JSON object")
            return response.status, answer
        finally:
            connection.close()
