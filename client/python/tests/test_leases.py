"""When a lock is kept and when it is lost, and what is not waited for. These tests wait for most of their time, so
they run beside each other."""

import asyncio
import functools
import sys
import threading
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from nodes import PATIENCE, RELIABLE, SHORT, STRANGE, TTL, Story, async_client, but, client, hangs, held, kept, works  # noqa: E402
from rowlock import LeaseOver, TimedOut  # noqa: E402
from rowlock.transport import ANSWER_MAX, now  # noqa: E402


def beside(story):
    """A test that begins with the first of its class."""

    @functools.wraps(story)
    def test(self):
        self.begun[story.__name__].result()

    test.story = story
    return test


class Tests(Story):
    @classmethod
    def setUpClass(cls):
        stories = {name: test.story for name, test in vars(cls).items() if hasattr(test, "story")}
        cls.threads = ThreadPoolExecutor(len(stories))
        cls.begun = {name: cls.threads.submit(cls.run_story, cls(name), story) for name, story in stories.items()}

    @classmethod
    def tearDownClass(cls):
        cls.threads.shutdown()

    def run_story(self, story):
        try:
            story(self)
        finally:
            self.doCleanups()

    @beside
    def test_a_lock_is_lost_when_no_node_answers_keep_alive(self):
        node, began = self.node(but("/keepalive", (503, {}), SHORT)), now()
        guard = client(node).lock("a").acquire()
        self.assertFalse(guard.lost)
        self.assertTrue(guard.wait_lost(PATIENCE))
        passed = now() - began
        self.assertTrue(guard.lost)
        self.assertTrue(RELIABLE * SHORT <= passed < 2 * SHORT, passed)

    @beside
    def test_a_lock_without_a_thread_lives_by_the_programs_own_keep_alive(self):
        node = self.node(lambda path, body: works(path, body, SHORT))
        guard = client(node).lock("a", keep_alive=False).acquire()
        asked, began = node.count("/keepalive"), now()
        while now() < began + 1.5 * SHORT:
            self.assertTrue(guard.keep_alive() and not guard.lost)
            threading.Event().wait(SHORT / 3)
        self.assertLessEqual(node.count("/keepalive"), asked + 5, "a thread asks as well")
        last = now()
        self.assertTrue(guard.keep_alive())
        self.assertTrue(guard.wait_lost(PATIENCE))
        self.assertGreaterEqual(now() - last, RELIABLE * SHORT)
        self.assertFalse(guard.keep_alive(), "a lock that was lost comes back")

    @beside
    def test_a_lock_is_lost_when_the_lease_is_not_known(self):
        guard = client(self.node(but("/keepalive", (404, {}), 2 * SHORT))).lock("a").acquire()
        began = now()
        self.assertTrue(guard.wait_lost(PATIENCE))
        # A third of its time has passed, and not nine tenths.
        self.assertLess(now() - began, 1.5 * SHORT)

    @beside
    def test_a_lock_is_lost_at_its_deadline_when_keep_alive_is_answered_by_something_else(self):
        def one(answer):
            node, began = self.node(but("/keepalive", answer, SHORT)), now()
            guard = client(node).lock("a").acquire()
            # The deadline counts from a moment between these two.
            self.lost_by(guard, now() + RELIABLE * SHORT)
            self.assertGreaterEqual(now() - began, RELIABLE * SHORT, answer)

        with ThreadPoolExecutor(len(STRANGE)) as threads:
            list(threads.map(one, STRANGE))

    @beside
    def test_a_promise_of_more_than_the_leases_time_counts_for_that_time(self):
        node = self.node(but("/keepalive", (200, {"valid_for_ms": 10**9}), SHORT))
        guard = client(node).lock("a").acquire()
        first = guard._lease.deadline
        self.wait_for("keep-alive", lambda: guard._lease.deadline != first)
        self.assertGreater(guard._lease.deadline, first)
        self.assertFalse(guard.lost)
        guard.silence()
        self.lost_by(guard, now() + RELIABLE * SHORT)

    @beside
    def test_timeouts_wait_for_no_node_that_hangs(self):
        for node in self.hanging():
            began = now()
            with self.assertRaises(TimedOut):
                client(node).lock("a", timeout=0.5).acquire()
            self.assertLess(now() - began, ANSWER_MAX)

    @beside
    def test_aborts_wait_for_no_node_that_hangs(self):
        for node in self.hanging():
            lock, aborted = client(node).lock("a", timeout=PATIENCE), []

            def abort():
                self.wait_for("a request", lambda: node.count(node.hangs_at) > 0)
                aborted.append(now())
                lock.abort()

            threading.Thread(target=abort, daemon=True).start()
            with self.assertRaisesRegex(LeaseOver, "aborted"):
                lock.acquire()
            self.assertLess(now() - aborted[0], ANSWER_MAX)

    def hanging(self):
        """A node may take a third of the lease's time for an answer, and more where it is asked to wait."""
        hanging = self.node(hangs)
        opens = self.node(lambda path, body: works(path, body) if path == "/v1/leases" else None)
        hanging.hangs_at, opens.hangs_at = "/v1/leases", "/acquire"
        return hanging, opens

    @beside
    def test_a_node_that_hangs_leaves_time_for_the_others(self):
        hanging, good = self.node(hangs), self.node(works)
        # Less than a third of the lease's time, and half of it for each node.
        with client(hanging, good).lock("a", timeout=0.3 * TTL) as guard:
            self.assertFalse(guard.lost)
        self.assertGreater(len(hanging.seen), 0)

    @beside
    def test_a_holder_hears_each_question_about_its_token_once(self):
        # What is said while so many were heard, the last of it again and again: an answer may come too late.
        said = [
            ["yes"],
            # Of another holder, and of something else than a node.
            [[asks("not you", 1, token="8"), {"token": "7"}, None, 5, asks("bad", -1), asks("first", 10)]],
            # Told again, older; then asked again, with other words, with a deadline.
            [[asks("first", 200)], [asks("first", 5)]],
            [[asks("first", 300), asks("second", 20)]],
            [[asks("second", 100, revoked_in_ms=60_000)]],
            [[asks("second", 200, revoked_in_ms=59_900)]],
        ]
        heard, given, blocks = [], [], threading.Event()
        self.addCleanup(blocks.set)

        def script(path, body):
            if path.endswith("/acquire"):
                return held(SHORT, asked=[asks("zeroth", 0)])
            if path.endswith("/keepalive"):
                turn = said[len(heard)]
                given.append(turn.pop(0) if len(turn) > 1 else turn[0])
                return kept(SHORT, asked=given[-1])
            return works(path, body, SHORT)

        def on_asked(question):
            heard.append(question)
            # Keep-alive does not wait for it.
            blocks.wait()

        with client(self.node(script)).lock("a", PATIENCE, on_asked=on_asked) as guard:
            self.assertEqual(guard.asked().reason, "zeroth")
            self.wait_for("all questions", lambda: len(heard) == 5)
            self.assertFalse(guard.lost)
            self.assertEqual([(each.reason, each.revoked_at is None) for each in heard], [
                ("zeroth", True), ("first", True), ("first", True), ("second", True), ("second", False)])
            self.assertIn([asks("first", 5)], given, "what is told again is no news")
            newest = guard.asked()
            self.assertEqual((newest.lock, newest.token, newest.by), ("/locks/a", 7, "ops"))
            self.assertAlmostEqual(newest.revoked_at - newest.asked_at, 60.1, 2)

    @beside
    def test_a_lock_is_lost_at_the_deadline_of_a_question(self):
        answers = but("/keepalive", kept(SHORT, asked=[asks("now", 5, revoked_in_ms=7000)]), SHORT)
        nonsense = held(SHORT, asked="yes")
        node = self.node(lambda path, body: nonsense if path.endswith("/acquire") else answers(path, body))
        with client(node).lock("a") as guard:
            self.assertIsNone(guard.asked())
            self.wait_for("the question", lambda: guard.asked() is not None)
            self.lost_by(guard, now() + 7)

    @beside
    def test_a_coroutine_waits_for_a_question_and_for_the_loss(self):
        async def waits():
            node = self.node(but("/acquire", held(asked=[asks("zeroth", 0)])))
            async with async_client(node).lock("a") as guard:
                self.assertEqual((await guard.until_asked()).reason, "zeroth")
            quiet = self.node(lambda path, body: works(path, body, SHORT))
            async with async_client(quiet).lock("a") as guard:
                waiting = asyncio.ensure_future(guard.until_asked())
                await asyncio.sleep(0.3)
                self.assertFalse(waiting.done())
                guard.silence()
                self.assertIsNone(await asyncio.wait_for(waiting, PATIENCE), "lost")

        asyncio.run(waits())


def asks(reason, ago, token="7", **more):
    return {"lock": "/locks/a", "token": token, "reason": reason, "by": "ops", "asked_ms_ago": ago, **more}


if __name__ == "__main__":
    unittest.main()
