"""What the client does when nodes fail: against nodes of this file, which answer as they are told."""

import json
import sys
import threading
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rowlock import LeaseOver, Refused, Rowlock, TimedOut  # noqa: E402

LEASE = (201, {"lease": "0x1", "secret": "s", "ttl_ms": 600})
HELD = (200, {"state": "held", "token": "7", "valid_for_ms": 600})


class Node:
    """Answers by `script(path, body)`, which gives a status and a document."""

    def __init__(self, script):
        node = self
        self.seen = []

        class Handler(BaseHTTPRequestHandler):
            def answer(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                node.seen.append((self.command, self.path, body))
                status, document = script(self.path, body)
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(document).encode())

            do_POST = do_DELETE = answer

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
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
    def node(self, script):
        node = Node(script)
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
