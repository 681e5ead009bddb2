"""A lease and the thread that keeps it alive."""

import threading
from typing import Optional

from .errors import RowlockError
from .transport import Json, Transport, now

# Part of the time of a lease that its client does not count on: clocks do not run equally fast.
MARGIN = 0.1


class Lease:
    """A session at the cluster. Its own thread asks for keep-alive at a third of its time."""

    def __init__(self, transport: Transport, ttl: float, until: float) -> None:
        body: Json = {"ttl_ms": int(ttl * 1000)}
        # The moment from which the first answer counts is taken before the call, so retries only shorten it.
        sent = now()
        _, answer = transport.call("POST", "/v1/leases", body, until, each=ttl / 3)
        self.secret: str = answer["secret"]
        self._path = f"/v1/leases/{answer['lease']}"
        self._ttl = answer["ttl_ms"] / 1000
        self._transport = transport
        self._deadline = sent + self._ttl * (1 - MARGIN)
        self._ended = threading.Event()
        self._stop = threading.Event()
        threading.Thread(target=self._keep_alive, name="rowlock keep-alive", daemon=True).start()

    @property
    def deadline(self) -> float:
        """A moment of `now` from which nothing of this lease may be relied on."""
        return self._deadline

    @property
    def lost(self) -> bool:
        """Whether it is over, or must be taken to be. Right also when the thread had no time to run."""
        return self._ended.is_set() or now() >= self._deadline

    def wait_lost(self, timeout: Optional[float] = None) -> bool:
        """Waits until the lease is lost or given back, for `timeout` seconds at most; whether it is."""
        return self._ended.wait(timeout) or self.lost

    def silence(self) -> None:
        """Asks for no keep-alive any more: the lease ends by itself."""
        self._stop.set()

    def end(self) -> None:
        """Gives back everything of it. When no node answers, it ends by itself. Does not raise."""
        self._stop.set()
        until = self._deadline
        self._ended.set()
        try:
            self._transport.call("DELETE", self._path, {"secret": self.secret}, until, each=self._ttl / 3)
        except RowlockError:
            pass

    def _keep_alive(self) -> None:
        due = now() + self._ttl / 3
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
            due = sent + self._ttl / 3
            self._ask(sent)
        self._ended.set()

    def _ask(self, sent: float) -> None:
        body = {"secret": self.secret}
        try:
            path = f"{self._path}/keepalive"
            status, answer = self._transport.call("POST", path, body, self._deadline, each=self._ttl / 6)
        except RowlockError:
            # No node, or a refusal: what is known of the lease holds until its deadline.
            return
        if status == 404:
            self._ended.set()
        elif not self.lost:
            # Invariant: a deadline that has passed is never moved.
            self._deadline = sent + answer["valid_for_ms"] / 1000 * (1 - MARGIN)
