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
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rowlock import AsyncRowlock, LeaseOver, Refused, Rowlock, RowlockError, Stale, TimedOut  # noqa: E402
from rowlock.transport import address, now  # noqa: E402

LEASE = (201, {"lease": "0x1", "secret": "s", "ttl_ms": 600})
HELD = (200, {"state": "held", "token": "7", "valid_for_ms": 600})


class Node:
    """Answers by `script(path, body)`, which gives a status and a document."""

    def __init__(self, script, keeps=False, hangs_up=lambda: False):
        node = self
        self.seen = []
        self.headers = []
        self.connections = []
        # What it names as the leader's address.
        self.leader = None

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1" if keeps else "HTTP/1.0"
            disable_nagle_algorithm = True

            def setup(self):
                super().setup()
                node.connections.append(self.client_address)

            def answer(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                body = json.loads(body) if self.headers["Content-Type"] == "application/json" else body
                node.seen.append((self.command, self.path, body))
                node.headers.append(self.headers)
                status, document = script(self.path, body)
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
        self.server.shutdown()
        self.server.server_close()


# What a proxy answers in the place of a node, or a node of something else.
STRANGE = [
    (200, {}), (200, b""), (200, b"[]"), (200, b"<html>ready</html>"), (204, b""), (302, {}), (502, b"<html>bad</html>"),
    (200, {"valid_for_ms": None, "state": "held", "token": None, "released": "yes", "held": 1, "ttl_ms": "600"}),
    (200, b'{"valid_for_ms": NaN, "state": "waiting", "position": "first"}'), (202, b'{"valid_for_ms": 1e999}'),
    (201, {"lease": "0x1", "secret": "s", "ttl_ms": -1, "state": "free", "valid_for_ms": -5}),
    (200, {"valid_for_ms": 10**400}),
]


def hangs(_path, _body):
    """Longer than any bound of the tests, but servers are closed only when their requests are."""
    time.sleep(2.5)
    return 503, {}


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

    def test_a_release_that_is_not_waited_for_stays_in_front_of_the_next_request_for_its_lock(self):
        let_go = threading.Event()

        def is_slow(path, body):
            if path == "/v1/locks/a/release" and not let_go.is_set():
                let_go.wait(2)
            return works(path, body)

        node = self.node(is_slow)
        cluster = Rowlock(node.url)
        guard = cluster.lock("a").acquire()
        guard.release_later()
        self.assertTrue(guard.lost)
        self.assertFalse(guard.release())
        self.assertTrue(cluster.lock("b").acquire().release(), "another lock waits")
        with self.assertRaises(TimedOut):
            cluster.lock("a", timeout=0.05).acquire()
        following = threading.Thread(target=lambda: cluster.lock("a").acquire().release())
        following.start()
        paths = [path for _, path, _ in node.seen]
        self.assertEqual((paths.count("/v1/locks/a/acquire"), paths.count("/v1/locks/a/release")), (1, 1))
        let_go.set()
        following.join(5)
        self.assertEqual([path for _, path, _ in node.seen].count("/v1/locks/a/acquire"), 2)

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

    def test_a_client_goes_to_a_leader_that_it_knows_and_only_now_and_then(self):
        first, other, leader, stranger = (self.node(works) for _ in range(4))

        def cycle(cluster):
            """Whether each request to the first node has asked for the leader."""
            asked = len(first.seen)
            self.assertTrue(cluster.lock("a").acquire().release())
            self.assertEqual((other.seen, stranger.seen), ([], []))
            return [headers["Prefer"] == "leader" for headers in first.headers[asked:]]

        first.leader = leader.url[len("http://"):]
        cluster = Rowlock([first.url, other.url, leader.url])
        self.assertEqual((cycle(cluster), cycle(cluster)), ([True], []))
        self.assertGreaterEqual(len(leader.seen), 7)
        # It dies, and is named again: at first that counts for nothing.
        leader.close()
        self.assertEqual(set(cycle(cluster)), {False})
        cluster._transport._stays_until = 0.0
        self.assertEqual(cycle(cluster)[:2], [True, False])

        first.leader = stranger.url[len("http://"):]
        self.assertEqual(cycle(Rowlock([first.url, other.url]))[:2], [True, False])
        self.assertEqual(set(cycle(Rowlock(first.url))), {False}, "there is no other node")
        for url, expected in (("HTTPS://Db1.Example", "db1.example:443"), ("http://[::1]:8481/", "[::1]:8481")):
            self.assertEqual(address(urlsplit(url)), expected)

    def test_the_end_of_the_callers_time_is_no_failure_of_the_node(self):
        hanging, good = self.node(hangs), self.node(works)
        transport = Rowlock([hanging.url, good.url])._transport
        with self.assertRaises(TimedOut):
            transport.call("POST", "/v1/leases", {}, now() + 0.1, each=5)
        self.assertEqual(transport.call("POST", "/v1/leases", {}, now() + 5, each=0.1), LEASE)
        self.assertEqual((len(hanging.seen), len(good.seen)), (2, 1))

    def test_a_fenced_write_is_repeated_with_its_key_and_a_late_one_is_stale(self):
        late, other = (412, {"title": "late", "stale": True}), (412, {"title": "another version"})
        answers = iter([(200, {}), (503, {}), (200, {"stat": {"version": 3}}), late, other])
        node = self.node(lambda path, body: next(answers) if "znodes" in path else works(path, body))
        with Rowlock(node.url).lock("a;b") as guard:
            self.assertEqual(guard.set("/x y", b"data", 2), 3)
            at = [at for at, (_, path, _) in enumerate(node.seen) if path == "/v1/znodes/x%20y"]
            self.assertEqual([node.seen[each][2] for each in at], [b"data"] * 3)
            headers = [node.headers[each] for each in at]
            self.assertEqual(len({each["Idempotency-Key"] for each in headers}), 1)
            sent = [headers[2][name] for name in ("Rowlock-Fence", "Rowlock-Lease", "If-Match")]
            self.assertEqual(sent, ["a%3Bb;7", "s", '"2"'])
            self.assertRaises(Stale, guard.delete, "/x y")
            with self.assertRaises(Refused) as refused:
                guard.delete("/x y", 1)
            self.assertEqual(refused.exception.status, 412)

    def test_a_holder_hears_each_question_about_its_token_once(self):
        def one(reason, ago, token="7", **more):
            return {"lock": "/locks/a", "token": token, "reason": reason, "by": "ops", "asked_ms_ago": ago, **more}

        said = [
            # Of another holder, and of something else than a node.
            [one("not you", 1, token="8")], [{"token": "7"}, None, 5], "yes", [one("bad", -1)],
            # Told again, older each time; then asked again, with other words, with a deadline.
            [one("first", 10)], [one("first", 200)], [one("first", 5)], [one("first", 300), one("second", 20)],
            [one("second", 100, revoked_in_ms=60_000)],
        ]
        answers = iter(said)
        last = [one("second", 200, revoked_in_ms=59_900)]

        def script(path, body):
            if path == "/v1/leases":
                return 201, dict(LEASE[1], ttl_ms=1500)
            if path.endswith("/keepalive"):
                return 200, {"valid_for_ms": 1500, "asked": next(answers, last)}
            if path.endswith("/acquire"):
                return 200, dict(HELD[1], asked=[one("zeroth", 0)])
            return works(path, body)

        heard, news = [], threading.Event()

        def on_asked(question):
            heard.append(question)
            if len(heard) == 5:
                news.set()
            # Keep-alive does not wait for it.
            time.sleep(2)

        lock = Rowlock(self.node(script).url).lock("a", on_asked=on_asked)
        with lock as guard:
            self.assertEqual(guard.asked().reason, "zeroth")
            self.assertTrue(news.wait(20))
            self.assertEqual(next(answers, None), None, "all were said")
            self.assertFalse(guard.lost)
            self.assertEqual([(each.reason, each.revoked_at is None) for each in heard], [
                ("zeroth", True), ("first", True), ("first", True), ("second", True), ("second", False)])
            newest = guard.asked()
            self.assertEqual((newest.lock, newest.token, newest.by), ("/locks/a", 7, "ops"))
            self.assertLess(abs(newest.revoked_at - newest.asked_at - 60.1), 5)

        # At its deadline the lock is lost.
        node = self.node(lambda path, body: (
            (200, {"valid_for_ms": 600, "asked": [one("now", 5, revoked_in_ms=500)]})
            if path.endswith("/keepalive") else works(path, body)))
        with Rowlock(node.url).lock("a") as guard:
            self.assertTrue(guard.wait_lost(5))
            self.assertLess(sum(path.endswith("/keepalive") for _, path, _ in node.seen), 6)

        async def waits():
            asks = AsyncRowlock(self.node(script).url).lock("a")
            async with asks as held:
                self.assertEqual((await held.until_asked()).reason, "zeroth")
            quiet = self.node(works)
            async with AsyncRowlock(quiet.url).lock("a") as held:
                waiting = asyncio.ensure_future(held.until_asked())
                await asyncio.sleep(0.3)
                self.assertFalse(waiting.done())
                held.silence()
                self.assertIsNone(await asyncio.wait_for(waiting, 5), "lost")

        asyncio.run(waits())

    def test_holders_are_asked_for_the_lock(self):
        holder = {"token": "7", "place": "p", "label": "l", "since_ms": 5}
        answers = iter([(503, {}), (200, {}), (200, {"asked": 1, "holders": [holder]}), (200, {"asked": 0, "holders": []}),
                        (404, {"title": "Not Found"}), (403, {"title": "Forbidden", "detail": "for operators"})])
        node = self.node(lambda path, body: next(answers))
        cluster = Rowlock(node.url)
        self.assertEqual(cluster.ask("ci/a b", "the next release", within=1.5, label="me"), 1)
        self.assertEqual(node.seen[2], ("POST", "/v1/locks/ci/a%20b/ask", {
            "reason": "the next release", "within_ms": 1500, "label": "me"}))
        self.assertEqual(asyncio.run(AsyncRowlock(node.url).ask("a", "why")), 0)
        self.assertEqual(node.seen[3][2], {"reason": "why"})
        for status in (404, 403):
            with self.assertRaises(Refused) as refused:
                cluster.ask("a", "why", within=1)
            self.assertEqual(refused.exception.status, status)

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

    def test_what_is_no_answer_of_this_api_is_asked_again_at_the_next_node(self):
        for answer in STRANGE:
            strange, good = self.node(lambda _path, _body: answer), self.node(works)
            with self.subTest(answer=answer):
                lock = Rowlock([strange.url, good.url]).lock("a", timeout=5)
                with lock as guard:
                    self.assertEqual((guard.token, guard.lost), (7, False))
                self.assertGreater(len(strange.seen), 0)
                self.assertTrue(guard.lost)

    def test_a_lock_is_lost_at_its_deadline_when_keep_alive_is_answered_by_something_else(self):
        for answer in STRANGE:
            node = self.node(lambda path, body: answer if path.endswith("/keepalive") else works(path, body))
            with self.subTest(answer=answer):
                guard, began = Rowlock(node.url).lock("a").acquire(), time.monotonic()
                self.assertTrue(guard.wait_lost(5))
                self.assertTrue(guard.lost)
                self.assertLess(time.monotonic() - began, 2)

    def test_a_promise_of_more_than_the_leases_time_counts_for_that_time(self):
        node = self.node(
            lambda path, body: (200, {"valid_for_ms": 10**9}) if path.endswith("/keepalive") else works(path, body))
        guard = Rowlock(node.url).lock("a").acquire()
        time.sleep(0.7)
        self.assertFalse(guard.lost)
        guard.silence()
        self.assertTrue(guard.wait_lost(2))

    def test_timeouts_and_aborts_wait_for_no_node_that_hangs(self):
        hanging = self.node(hangs)
        opens = self.node(lambda path, body: works(path, body) if path == "/v1/leases" else hangs(path, body))
        for node in (hanging, opens):
            lock, began = Rowlock(node.url).lock("a", timeout=0.5), time.monotonic()
            with self.assertRaises(TimedOut):
                lock.acquire()
            self.assertLess(time.monotonic() - began, 2)
            lock = Rowlock(node.url).lock("a")
            threading.Timer(0.3, lock.abort).start()
            began = time.monotonic()
            with self.assertRaisesRegex(LeaseOver, "aborted"):
                lock.acquire()
            self.assertLess(time.monotonic() - began, 2)

    def test_a_node_that_hangs_leaves_time_for_the_others(self):
        long = (201, {"lease": "0x1", "secret": "s", "ttl_ms": 10_000})
        hanging = self.node(hangs)
        good = self.node(lambda path, body: long if path == "/v1/leases" else works(path, body))
        with Rowlock([hanging.url, good.url]).lock("a", timeout=2) as guard:
            self.assertFalse(guard.lost)

    def test_a_lock_can_be_taken_after_a_cancelled_attempt(self):
        is_busy = [True]

        def script(path, body):
            if path.endswith("/acquire") and is_busy[0]:
                time.sleep(0.05)
                return 202, {"state": "waiting", "position": 1}
            return works(path, body)

        node = self.node(script)
        lock = Rowlock(node.url).lock("a", on_waiting=lambda _: lock.abort())
        with self.assertRaisesRegex(LeaseOver, "aborted"):
            lock.acquire()
        is_busy[0] = False
        with lock as guard:
            self.assertFalse(guard.lost)

        async def cancelled():
            is_busy[0] = True
            lock = AsyncRowlock(node.url).lock("a")
            for pause in (0, 0.2):
                task = asyncio.create_task(lock.acquire())
                await asyncio.sleep(pause)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                self.assertTrue(task.cancelled())
            is_busy[0] = False
            async with lock as guard:
                self.assertFalse(guard.lost)

        asyncio.run(cancelled())
        def count(method, path):
            return sum(seen[0] == method and seen[1].startswith(path) for seen in list(node.seen))

        deadline = time.monotonic() + 5
        while count("DELETE", "/v1/leases/") < count("POST", "/v1/leases") - count("POST", "/v1/leases/"):
            self.assertLess(time.monotonic(), deadline, "each lease is given back")
            time.sleep(0.02)

    def test_a_lock_that_is_held_is_not_entered_again(self):
        node = self.node(works)
        lock = Rowlock(node.url).lock("a", mode="shared")
        with lock as guard:
            with self.assertRaisesRegex(RowlockError, "held already"):
                lock.__enter__()
            self.assertFalse(guard.lost)
        self.assertEqual(sum(path.endswith("/release") for _, path, _ in node.seen), 1)
        with lock:
            pass

        async def twice():
            lock = AsyncRowlock(node.url).lock("a")
            async with lock as guard:
                with self.assertRaisesRegex(RowlockError, "held already"):
                    await lock.__aenter__()
                self.assertFalse(guard.lost)

        asyncio.run(twice())

    @unittest.skipUnless(hasattr(os, "fork"), "no fork")
    def test_a_fork_that_leaves_the_block_does_not_give_its_parents_lock_back(self):
        node = self.node(works)
        cluster = Rowlock(node.url)
        child = None
        try:
            with cluster.lock("a") as guard:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # that a program with threads forks
                    child = os.fork()
                if child != 0:
                    code = os.waitpid(child, 0)[1]
                    # Before this process gives anything back itself.
                    sent = [(method, path) for method, path, _ in node.seen if not path.endswith("/keepalive")]
                    self.assertEqual((code, guard.lost), (0, False))
        finally:
            if child == 0:
                # In the child: it has left the block.
                with cluster.lock("b", timeout=5) as own:
                    is_right = guard.lost and guard.wait_lost() and not guard.release() and not own.lost
                os._exit(0 if is_right else 1)
        self.assertEqual(sent[:2], [("POST", "/v1/leases"), ("POST", "/v1/locks/a/acquire")])
        self.assertNotIn(("POST", "/v1/locks/a/release"), sent)
        self.assertEqual(sum(method == "DELETE" for method, _ in sent), 1, "that of b")


if __name__ == "__main__":
    unittest.main()
