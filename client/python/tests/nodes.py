"""Nodes for the tests, which answer as they are told. Leases are long, and what must happen is waited for, so that a
slow machine is no failure."""

import json
import threading
import time
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from rowlock import AsyncRowlock, Rowlock
from rowlock.lease import END_MAX
from rowlock.transport import now

# Seconds of a lease.
TTL = 60.0
# Of leases whose end is waited for: short, but seconds longer than a slow machine needs for a request.
SHORT = 9.0
# Part of a lease's time that a client counts on.
RELIABLE = 0.9
# For what must happen, on a machine of any speed.
PATIENCE = 60.0


class Node:
    """Answers by `script(path, body)`, which gives a status and a document; None: it hangs until it is closed."""

    def __init__(self, script, keeps=False, hangs_up=lambda: False):
        node = self
        self.seen = []
        # Those of `seen`.
        self.headers = []
        # Which it has answered, or whose client was gone.
        self.done = []
        self.connections = []
        # What it names as the leader's address.
        self.leader = None
        self.closed = threading.Event()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1" if keeps else "HTTP/1.0"
            disable_nagle_algorithm = True

            def setup(self):
                super().setup()
                node.connections.append(self.client_address)

            def answer(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                body = json.loads(body) if self.headers["Content-Type"] == "application/json" else body
                node.headers.append(self.headers)
                node.seen.append((self.command, self.path, body))
                try:
                    self.say(script(self.path, body))
                finally:
                    node.done.append(self.path)

            def say(self, said):
                if said is None:
                    node.closed.wait()
                    self.close_connection = True
                    return
                status, document = said
                text = document if isinstance(document, bytes) else json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                if node.leader is not None:
                    self.send_header("Rowlock-Leader", node.leader)
                self.end_headers()
                self.wfile.write(text)
                # As a node that has no more patience: without a word.
                self.close_connection = self.close_connection or hangs_up()

            do_POST = do_PUT = do_DELETE = answer

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        # A client that has not waited for its answer.
        self.server.handle_error = lambda *_: None
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self):
        self.closed.set()
        self.server.shutdown()
        self.server.server_close()

    def count(self, end, method="POST"):
        return sum(seen[0] == method and seen[1].endswith(end) for seen in list(self.seen))

    @property
    def ended(self):
        """How many leases were given back."""
        return self.count("", "DELETE")


# What a proxy answers in the place of a node, or a node of something else.
STRANGE = [
    (200, {}), (200, b""), (200, b"[]"), (200, b"<html>ready</html>"), (204, b""), (302, {}),
    (502, b"<html>bad</html>"),
    (200, {"valid_for_ms": None, "state": "held", "token": None, "released": "yes", "held": 1, "ttl_ms": "600"}),
    (200, b'{"valid_for_ms": NaN, "state": "waiting", "position": "first"}'), (202, b'{"valid_for_ms": 1e999}'),
    (201, {"lease": "0x1", "secret": "s", "ttl_ms": -1, "state": "free", "valid_for_ms": -5}),
    (200, {"valid_for_ms": 10**400}),
]


def lease(ttl=TTL):
    return 201, {"lease": "0x1", "secret": "s", "ttl_ms": int(ttl * 1000)}


def held(ttl=TTL, **more):
    return 200, {"state": "held", "token": "7", "valid_for_ms": int(ttl * 1000), **more}


def kept(ttl=TTL, **more):
    return 200, {"valid_for_ms": int(ttl * 1000), **more}


def works(path, _body, ttl=TTL):
    if path == "/v1/leases":
        return lease(ttl)
    if path.endswith("/acquire"):
        return held(ttl)
    if path.endswith("/keepalive"):
        return kept(ttl)
    if path == "/v1/leases/0x1":
        return 204, b""
    return 200, {"released": True}


def but(end, answer, ttl=TTL):
    """A script that works but for addresses with this end."""
    return lambda path, body: answer if path.endswith(end) else works(path, body, ttl)


def hangs(_path, _body):
    return None


def urls(*nodes):
    return [node.url for node in nodes]


# Those of the running test.
CLIENTS = []


def client(*nodes, **options):
    # A node may take a third of it for an answer.
    CLIENTS.append(Rowlock(urls(*nodes), **{"ttl": TTL, **options}))
    return CLIENTS[-1]


def async_client(node):
    both = AsyncRowlock(node.url, ttl=TTL)
    CLIENTS.append(both._client)
    return both


class Story(unittest.TestCase):
    def tearDown(self):
        # Unwaited releases need the nodes, which are closed next.
        while CLIENTS:
            CLIENTS.pop().flush(1)

    def node(self, script, **options):
        node = Node(script, **options)
        self.addCleanup(node.close)
        return node

    def wait_for(self, what, holds):
        until = now() + PATIENCE
        while not holds():
            self.assertLess(now(), until, what)
            time.sleep(0.005)

    def ends(self, node, began, count=1):
        """For what has ended so many leases since this moment of `now`: it waits for the node, `END_MAX` at most."""
        if now() - began >= END_MAX:
            self.wait_for("the end of a lease", lambda: node.ended >= count)
        self.assertGreaterEqual(node.ended, count, node.seen)

    def lost_by(self, guard, deadline):
        """Waits for a loss: at any look at this moment of `now` or later, the lock is lost."""
        while True:
            at = now()
            if guard.lost:
                break
            self.assertLess(at, deadline, "it is held past its deadline")
            time.sleep(0.02)
        self.assertTrue(guard.wait_lost(PATIENCE))
