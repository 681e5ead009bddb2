"""What the client does when nodes fail: against nodes of this file, which answer as they are told."""

import asyncio
import json
import os
import sys
import threading
import time
import unittest
import warnings
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rowlock import AsyncRowlock, LeaseOver, Refused, Rowlock, TimedOut  # noqa: E402

LEASE = (201, {"lease": "0x1", "secret": "s", "ttl_ms": 600})
HELD = (200, {"state": "held", "token": "7", "valid_for_ms": 600})


class Node:
    """Answers by `script(path, body)`, which gives a status and a document."""

    def __init__(self, script, keeps=False, hangs_up=lambda: False):
        node = self
        self.seen = []
        self.connections = []

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1" if keeps else "HTTP/1.0"
            disable_nagle_algorithm = True

            def setup(self):
                super().setup()
                node.connections.append(self.client_address)

            def answer(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                node.seen.append((self.command, self.path, body))
                status, document = script(self.path, body)
                text = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)
                # As a node that has no more patience: without a word.
                self.close_connection = self.close_connection or hangs_up()

            do_POST = do_DELETE = answer

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        # A client that has not waited for its answer.
        self.server.handle_error = lambda *_: None
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


def works(path, _body):
    if path == "/v1/leases":
        return LEASE
    if path.endswith("/acquire"):
        return HELD
    if path.endswith("/keepalive"):
        return 200, {"valid_for_ms": 600}
    return 200, {"released": True}


class Tests(unittest.TestCase):
    def node(self, script, **options):
        node = Node(script, **options)
        self.addCleanup(node.close)
        return node

    def test_an_attempt_keeps_its_request_id_at_the_next_node(self):
        fails = self.node(lambda path, body: (503, {}) if path.endswith("/acquire") else works(path, body))
        good = self.node(works)
        with Rowlock([fails.url, good.url]).lock("a/b") as guard:
            self.assertEqual((guard.token, guard.lost), (7, False))
        sent = [body for node in (fails, good) for _, path, body in node.seen if path == "/v1/locks/a/b/acquire"]
        self.assertEqual(len(sent), 2)
        self.assertEqual(sent[0]["request_id"], sent[1]["request_id"])
        self.assertTrue(guard.lost)
        self.assertIn("DELETE", [method for method, _, _ in good.seen])

    def test_requests_one_after_another_share_a_connection(self):
        node = self.node(works, keeps=True)
        cluster = Rowlock(node.url)
        for _ in range(5):
            with cluster.lock("a", timeout=0):
                pass
        # Keep-alive may have had one of its own.
        self.assertLessEqual(len(node.connections), 2)
        self.assertGreaterEqual(len(node.seen), 20)

        async def five():
            for _ in range(5):
                async with AsyncRowlock(node.url).lock("a", timeout=0):
                    pass

        asyncio.run(five())
        self.assertLessEqual(len(node.connections), 2 + 5 * 2)

    def test_a_connection_that_the_node_has_closed_is_no_failure_of_the_node(self):
        node, other = self.node(works, keeps=True, hangs_up=lambda: True), self.node(works)
        cluster = Rowlock([node.url, other.url])
        for _ in range(5):
            with cluster.lock("a", timeout=0) as guard:
                self.assertFalse(guard.lost)
        self.assertEqual(other.seen, [])

    def test_an_answer_that_came_too_late_is_not_taken_for_the_next_one(self):
        def script(path, body):
            if path.endswith("/acquire") and body["label"] == "slow":
                time.sleep(1.0)
                return 200, {"state": "busy", "holder": None}
            return works(path, body)

        node = self.node(script, keeps=True)
        cluster = Rowlock(node.url, ttl=0.6)
        for _ in range(3):
            with self.assertRaises((TimedOut, LeaseOver)):
                cluster.lock("a", timeout=0.2, label="slow").acquire()
            with cluster.lock("a", timeout=0, label="quick") as guard:
                self.assertEqual(guard.token, 7)

    @unittest.skipUnless(hasattr(os, "fork"), "no fork")
    def test_a_fork_does_not_use_its_parents_connections(self):
        node = self.node(works, keeps=True)
        cluster = Rowlock(node.url)
        with cluster.lock("a", timeout=0):
            pass
        before = set(node.connections)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a program with threads forks
            child = os.fork()
        if child == 0:
            try:
                with cluster.lock("a", timeout=0):
                    os._exit(0)
            finally:
                os._exit(1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertGreater(len(set(node.connections) - before), 0)
        known = len(node.connections)
        with cluster.lock("a", timeout=0):
            pass
        self.assertEqual(len(node.connections), known)

    def test_a_lock_is_lost_when_no_node_answers_keep_alive(self):
        node = self.node(lambda path, body: (503, {}) if path.endswith("/keepalive") else works(path, body))
        guard = Rowlock(node.url).lock("a").acquire()
        self.assertFalse(guard.lost)
        self.assertTrue(guard.wait_lost(5))
        self.assertTrue(guard.lost)

    def test_a_lock_is_lost_when_the_lease_is_not_known(self):
        node = self.node(lambda path, body: (404, {}) if path.endswith("/keepalive") else works(path, body))
        self.assertTrue(Rowlock(node.url).lock("a").acquire().wait_lost(5))

    def test_a_refusal_is_not_repeated_and_ends_the_lease(self):
        refuses = {"title": "no", "detail": "the lock has 3 permits"}
        node = self.node(lambda path, body: (422, refuses) if path.endswith("/acquire") else works(path, body))
        with self.assertRaisesRegex(Refused, "3 permits"):
            Rowlock(node.url).lock("a").acquire()
        self.assertEqual(sum(path.endswith("/acquire") for _, path, _ in node.seen), 1)
        self.assertIn("DELETE", [method for method, _, _ in node.seen])

    def test_a_place_that_was_taken_away_is_an_error(self):
        node = self.node(
            lambda path, body: (200, {"state": "gone"}) if path.endswith("/acquire") else works(path, body))
        with self.assertRaises(LeaseOver):
            Rowlock(node.url).lock("a").acquire()

    def test_without_nodes_the_time_runs_out(self):
        node = Node(works)
        node.close()
        with self.assertRaises(TimedOut):
            Rowlock(node.url).lock("a", timeout=0.3).acquire()


if __name__ == "__main__":
    unittest.main()
