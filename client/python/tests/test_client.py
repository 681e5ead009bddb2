"""What the client does when nodes fail: against nodes that answer as they are told."""

import asyncio
import contextlib
import faulthandler
import os
import sys
import threading
import time
import unittest
import unittest.mock
import warnings
from pathlib import Path
from urllib.parse import urlsplit

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from nodes import PATIENCE, STRANGE, TTL, Node, Story, async_client, but, client, hangs, lease, works  # noqa: E402
from rowlock import AsyncRowlock, LeaseOver, Refused, Rowlock, RowlockError, Stale, TimedOut  # noqa: E402
from rowlock.lease import END_MAX  # noqa: E402
from rowlock.transport import address, now  # noqa: E402


def slow_release(let_go):
    """A script whose releases of the lock `a` wait."""

    def script(path, body):
        if path == "/v1/locks/a/release":
            let_go.wait()
        return works(path, body)

    return script


class Tests(Story):
    def test_a_client_by_the_environment_has_nodes_token_and_authorities(self):
        node = self.node(works)
        env = {"ROWLOCK_API": f"{node.url},http://127.0.0.1:1", "ROWLOCK_TOKEN": "t", "ROWLOCK_TLS_CA": ""}
        with unittest.mock.patch.dict(os.environ, env):
            with Rowlock.from_env(ttl=TTL).lock("a"):
                pass
            AsyncRowlock.from_env(token="mine")
        self.assertEqual(node.headers[0]["Authorization"], "Bearer t")
        with unittest.mock.patch.dict(os.environ, {"ROWLOCK_TLS_CA": "/none/ca.pem"}):
            with self.assertRaisesRegex(ValueError, "ROWLOCK_TLS_CA=/none/ca.pem: .*No such file"):
                Rowlock.from_env()

    def test_the_end_of_with_waits_for_no_release(self):
        let_go = threading.Event()
        self.addCleanup(let_go.set)
        node = self.node(slow_release(let_go))
        cluster = client(node)

        def hold():
            with cluster.lock("a") as guard:
                pass
            return guard

        async def hold_async():
            async with async_client(node).lock("a") as guard:
                pass
            return guard

        for hold_once in (hold, lambda: asyncio.run(hold_async())):
            ended = []
            holding = threading.Thread(target=lambda: ended.append(hold_once()), daemon=True)
            holding.start()
            self.wait_for("the end of the block", lambda: ended)
            self.assertTrue(ended[0].lost)
            self.assertFalse(ended[0].release(), "a second request")
        self.wait_for("both releases", lambda: node.count("/release") == 2)
        self.assertFalse(cluster.flush(0.05))
        let_go.set()
        self.assertTrue(cluster.flush(PATIENCE))
        self.assertGreaterEqual(node.ended, 1)

    def test_an_attempt_opens_its_lease_while_the_release_of_its_lock_is_under_way(self):
        let_go = threading.Event()
        self.addCleanup(let_go.set)
        node = self.node(slow_release(let_go))
        cluster = client(node)
        cluster.lock("a").acquire().release_later()
        following = threading.Thread(target=lambda: cluster.lock("a").acquire(), daemon=True)
        following.start()
        self.wait_for("the second lease", lambda: node.count("/v1/leases") == 2)
        self.assertEqual(node.count("/v1/locks/a/acquire"), 1)
        let_go.set()
        following.join(PATIENCE)
        self.assertEqual(node.count("/v1/locks/a/acquire"), 2)

    def test_an_attempt_does_not_wait_for_the_end_of_the_lease_before(self):
        let_go = threading.Event()
        self.addCleanup(let_go.set)

        def script(path, body):
            if path == "/v1/leases/0x1":
                let_go.wait()
            return works(path, body)

        node = self.node(script)
        cluster = client(node)
        began = now()
        for _ in range(9):
            cluster.lock("a").acquire().release_later()
        self.assertLess(now() - began, 8 * END_MAX, "each has waited a second")

    def test_an_unwaited_release_is_repeated_and_its_failure_is_a_warning(self):
        answers = iter([(503, {}), (200, {}), (200, {"released": True})])
        node = self.node(lambda path, body: next(answers) if path.endswith("/release") else works(path, body))
        cluster = client(node)
        with self.assertNoLogs("rowlock") if hasattr(self, "assertNoLogs") else contextlib.nullcontext():
            with cluster.lock("a b"):
                pass
            self.assertTrue(cluster.flush(PATIENCE))
        self.assertEqual(node.count("/release"), 3)
        for answer, says in (((403, {"title": "no"}), "cannot release lock a b, token 7: "),
                             ((200, {"released": False}), "lock a b, token 7: not held any more"),
                             ((404, {}), "lock a b, token 7: not held any more")):
            refusing = client(self.node(but("/release", answer)))
            with self.assertLogs("rowlock", "WARNING") as logs:
                with refusing.lock("a b"):
                    pass
                self.assertTrue(refusing.flush(PATIENCE))
            self.assertIn(says, logs.output[0])
            self.assertEqual(len(logs.output), 1)

    def test_a_release_beyond_the_bound_of_unwaited_ones_is_waited_for(self):
        let_go = threading.Event()
        self.addCleanup(let_go.set)
        node = self.node(slow_release(let_go))
        cluster = client(node)
        with unittest.mock.patch("rowlock.transport.UNWAITED_MAX", 2):
            guards = [cluster.lock("a", owner=str(n)) for n in range(3)]
            # Each has been acquired before the first release: none stands behind another.
            guards = [guard.acquire() for guard in guards]
            for guard in guards[:2]:
                guard.release_later()
            third = threading.Thread(target=guards[2].release_later, daemon=True)
            third.start()
            self.wait_for("three releases", lambda: node.count("/release") == 3)
            third.join(0.1)
            self.assertTrue(third.is_alive(), "it is not waited for")
            let_go.set()
            third.join(PATIENCE)
            self.assertTrue(cluster.flush(PATIENCE) and not third.is_alive())

    def test_a_release_that_is_not_waited_for_stays_in_front_of_the_next_request_for_its_lock(self):
        let_go = threading.Event()
        self.addCleanup(let_go.set)
        node = self.node(slow_release(let_go))
        cluster = client(node)
        guard = cluster.lock("a").acquire()
        guard.release_later()
        self.assertTrue(guard.lost)
        self.assertFalse(guard.release())
        self.assertTrue(cluster.lock("b").acquire().release(), "another lock waits")
        with self.assertRaises(TimedOut):
            cluster.lock("a", timeout=0.05).acquire()
        following = threading.Thread(target=lambda: cluster.lock("a").acquire().release(), daemon=True)
        following.start()
        self.wait_for("the release", lambda: node.count("/v1/locks/a/release") == 1)
        self.assertEqual(node.count("/v1/locks/a/acquire"), 1)
        let_go.set()
        following.join(PATIENCE)
        self.assertEqual(node.count("/v1/locks/a/acquire"), 2)

    def test_an_attempt_keeps_its_request_id_at_the_next_node(self):
        fails, good = self.node(but("/acquire", (503, {}))), self.node(works)
        with client(fails, good).lock("a/b") as guard:
            self.assertEqual((guard.token, guard.lost), (7, False))
        self.wait_for("the end of the lease", lambda: good.ended == 1)
        sent = [body for node in (fails, good) for _, path, body in node.seen if path == "/v1/locks/a/b/acquire"]
        self.assertEqual(len(sent), 2)
        self.assertEqual(sent[0]["request_id"], sent[1]["request_id"])
        self.assertTrue(guard.lost)

    def test_a_client_goes_to_a_leader_that_it_knows_and_only_now_and_then(self):
        first, other, leader, stranger = (self.node(works) for _ in range(4))

        def cycle(cluster):
            """Whether each request to the first node has asked for the leader."""
            asked, ended = len(first.seen), first.ended + leader.ended
            self.assertTrue(cluster.lock("a").acquire().release())
            # Its last request may still be under way.
            self.wait_for("the end of the lease", lambda: first.ended + leader.ended > ended)
            self.assertEqual((other.seen, stranger.seen), ([], []))
            return [headers["Prefer"] == "leader" for headers in first.headers[asked:]]

        first.leader = leader.url[len("http://"):]
        cluster = client(first, other, leader)
        self.assertEqual((cycle(cluster), cycle(cluster)), ([True], []))
        self.assertGreaterEqual(len(leader.seen), 7)
        # It dies, and is named again: at first that counts for nothing.
        leader.close()
        self.assertEqual(set(cycle(cluster)), {False})
        cluster._transport._stays_until = 0.0
        self.assertEqual(cycle(cluster)[:2], [True, False])

        first.leader = stranger.url[len("http://"):]
        self.assertEqual(cycle(client(first, other))[:2], [True, False])
        self.assertEqual(set(cycle(client(first))), {False}, "there is no other node")
        for url, expected in (("HTTPS://Db1.Example", "db1.example:443"), ("http://[::1]:8481/", "[::1]:8481")):
            self.assertEqual(address(urlsplit(url)), expected)

    def test_the_end_of_the_callers_time_is_no_failure_of_the_node(self):
        hanging, good = self.node(hangs), self.node(works)
        transport = client(hanging, good)._transport
        with self.assertRaises(TimedOut):
            transport.call("POST", "/v1/leases", {}, now() + 0.1, each=PATIENCE)
        self.assertEqual((transport._at, good.seen), (0, []), "it is the next to be asked")
        self.assertEqual(transport.call("POST", "/v1/leases", {}, now() + PATIENCE, each=1), lease())
        self.assertEqual(transport._at % 2, 1)

    def test_a_fenced_write_is_repeated_with_its_key_and_a_late_one_is_stale(self):
        late, other = (412, {"title": "late", "stale": True}), (412, {"title": "another version"})
        answers = iter([(200, {}), (503, {}), (200, {"stat": {"version": 3}}), late, other])
        node = self.node(lambda path, body: next(answers) if "znodes" in path else works(path, body))
        with client(node).lock("a;b") as guard:
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

    def test_holders_are_asked_for_the_lock(self):
        holder = {"token": "7", "place": "p", "label": "l", "since_ms": 5}
        answers = iter([(503, {}), (200, {}), (200, {"asked": 1, "holders": [holder]}), (200, {"asked": 0, "holders": []}),
                        (404, {"title": "Not Found"}), (403, {"title": "Forbidden", "detail": "for operators"})])
        node = self.node(lambda path, body: next(answers))
        cluster = client(node)
        self.assertEqual(cluster.ask("ci/a b", "the next release", within=1.5, label="me"), 1)
        self.assertEqual(node.seen[2], ("POST", "/v1/locks/ci/a%20b/ask", {
            "reason": "the next release", "within_ms": 1500, "label": "me"}))
        self.assertEqual(asyncio.run(async_client(node).ask("a", "why")), 0)
        self.assertEqual(node.seen[3][2], {"reason": "why"})
        for status in (404, 403):
            with self.assertRaises(Refused) as refused:
                cluster.ask("a", "why", within=1)
            self.assertEqual(refused.exception.status, status)

    def test_requests_one_after_another_share_a_connection(self):
        node = self.node(works, keeps=True)
        cluster = client(node)
        for _ in range(5):
            with cluster.lock("a", timeout=0):
                pass
            self.rest(cluster, node)
        # Keep-alive may have had one of its own.
        self.assertLessEqual(len(node.connections), 2)
        self.assertGreaterEqual(len(node.seen), 20)

        async def five():
            for _ in range(5):
                before, one = len(node.connections), async_client(node)
                async with one.lock("a", timeout=0):
                    pass
                self.rest(one._client, node, before)
                self.assertLessEqual(len(node.connections) - before, 2)

        asyncio.run(five())

    def rest(self, cluster, node, before=0):
        """Waits until no request is under way: the end of a lease may take longer than that of a lock."""
        self.assertTrue(cluster.flush(PATIENCE))
        idle = cluster._transport._idle
        self.wait_for("kept connections", lambda: len(idle._kept) == len(node.connections) - before)

    def test_a_connection_that_the_node_has_closed_is_no_failure_of_the_node(self):
        node, other = self.node(works, keeps=True, hangs_up=lambda: True), self.node(works)
        cluster = client(node, other)
        for _ in range(5):
            with cluster.lock("a", timeout=0) as guard:
                self.assertFalse(guard.lost)
        self.assertEqual(other.seen, [])

    def test_an_answer_that_came_too_late_is_not_taken_for_the_next_one(self):
        let_go = threading.Event()
        self.addCleanup(let_go.set)

        def script(path, body):
            if path.endswith("/acquire") and body["label"] == "slow":
                let_go.wait()
                return 200, {"state": "busy", "holder": None}
            return works(path, body)

        node = self.node(script, keeps=True)
        cluster = client(node)
        for _ in range(3):
            let_go.clear()
            with self.assertRaises(TimedOut):
                cluster.lock("a", timeout=0.2, label="slow").acquire()
            let_go.set()
            self.wait_for("the late answer", lambda: len(node.done) == len(node.seen))
            with cluster.lock("a", timeout=0, label="quick") as guard:
                self.assertEqual(guard.token, 7)
        labels = [body["label"] for _, path, body in node.seen if path.endswith("/acquire")]
        self.assertEqual(labels.count("quick"), 3, "the first answer was its own")

    @unittest.skipUnless(hasattr(os, "fork"), "no fork")
    def test_a_fork_does_not_use_its_parents_connections(self):
        node = self.node(works, keeps=True)
        cluster = client(node)
        with cluster.lock("a", timeout=0):
            pass
        self.rest(cluster, node)
        before = set(node.connections)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a program with threads forks
            child = os.fork()
        if child == 0:
            faulthandler.dump_traceback_later(PATIENCE, exit=True)
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

    def test_a_lock_is_known_to_be_lost_at_its_deadline_though_nothing_ran(self):
        guard = client(self.node(works)).lock("a").acquire()
        self.assertFalse(guard.lost)
        guard._lease._deadline = now()
        self.assertTrue(guard.lost and guard.wait_lost())
        self.assertFalse(guard.release())

    def test_a_refusal_is_not_repeated_and_ends_the_lease(self):
        node = self.node(but("/acquire", (422, {"title": "no", "detail": "the lock has 3 permits"})))
        began = now()
        with self.assertRaisesRegex(Refused, "3 permits"):
            client(node).lock("a").acquire()
        self.assertEqual(node.count("/acquire"), 1)
        self.ends(node, began)

    def test_a_place_that_was_taken_away_is_an_error(self):
        node = self.node(but("/acquire", (200, {"state": "gone"})))
        with self.assertRaises(LeaseOver):
            client(node).lock("a").acquire()

    def test_without_nodes_the_time_runs_out(self):
        node = Node(works)
        node.close()
        with self.assertRaises(TimedOut):
            client(node).lock("a", timeout=0.3).acquire()

    def test_what_is_no_answer_of_this_api_is_asked_again_at_the_next_node(self):
        for answer in STRANGE:
            strange, good = self.node(lambda _path, _body: answer), self.node(works)
            with self.subTest(answer=answer):
                lock = client(strange, good).lock("a", timeout=PATIENCE)
                with lock as guard:
                    self.assertEqual((guard.token, guard.lost), (7, False))
                self.assertGreater(len(strange.seen), 0)
                self.assertTrue(guard.lost)

    def test_a_lock_can_be_taken_after_a_cancelled_attempt(self):
        is_busy = [True]

        def script(path, body):
            if path.endswith("/acquire") and is_busy[0]:
                time.sleep(0.05)
                return 202, {"state": "waiting", "position": 1}
            return works(path, body)

        node = self.node(script)
        lock = client(node).lock("a", on_waiting=lambda _: lock.abort())
        with self.assertRaisesRegex(LeaseOver, "aborted"):
            lock.acquire()
        is_busy[0] = False
        with lock as guard:
            self.assertFalse(guard.lost)

        async def cancelled():
            is_busy[0] = True
            lock = async_client(node).lock("a")
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
        self.wait_for("the end of each lease", lambda: node.ended >= node.count("/v1/leases"))

    def test_a_lock_that_is_held_is_not_entered_again(self):
        node = self.node(works)
        lock = client(node).lock("a", mode="shared")
        with lock as guard:
            with self.assertRaisesRegex(RowlockError, "held already"):
                lock.__enter__()
            self.assertFalse(guard.lost)
        self.wait_for("the release", lambda: node.count("/release") == 1)
        with lock:
            pass

        async def twice():
            lock = async_client(node).lock("a")
            async with lock as guard:
                with self.assertRaisesRegex(RowlockError, "held already"):
                    await lock.__aenter__()
                self.assertFalse(guard.lost)

        asyncio.run(twice())

    @unittest.skipUnless(hasattr(os, "fork"), "no fork")
    def test_a_fork_that_leaves_the_block_does_not_give_its_parents_lock_back(self):
        node = self.node(works)
        cluster = client(node)
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
                faulthandler.dump_traceback_later(3 * PATIENCE, exit=True)
                with cluster.lock("b", timeout=PATIENCE) as own:
                    is_right = guard.lost and guard.wait_lost() and not guard.release() and not own.lost
                # The end of its lease may take longer.
                for thread in set(threading.enumerate()) - {threading.current_thread()}:
                    thread.join(PATIENCE)
                os._exit(0 if is_right else 1)
        self.assertEqual(sent[:2], [("POST", "/v1/leases"), ("POST", "/v1/locks/a/acquire")])
        self.assertNotIn(("POST", "/v1/locks/a/release"), sent)
        self.assertEqual(sum(method == "DELETE" for method, _ in sent), 1, "that of b")


if __name__ == "__main__":
    unittest.main()
