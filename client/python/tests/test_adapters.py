"""`Rowlock.once` and `Mutex`: locks as other libraries use them."""

import sys
import threading
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from nodes import Story, but, client, held, works  # noqa: E402
from rowlock import LeaseOver, Mutex, TimedOut  # noqa: E402

BUSY = (200, {"state": "busy", "holder": None})


def answers(*those):
    """The answers to acquires, one after another."""
    left = list(those)
    return lambda path, body: left.pop(0) if path.endswith("/acquire") else works(path, body)


class Tests(Story):
    def test_a_function_runs_once_and_is_left_out_while_the_lock_is_busy(self):
        node = self.node(answers(held(), BUSY, held()))
        cluster, ran = client(node), []

        @cluster.once("report", every=600, label="host")
        def report(what, fails=False):
            """Reports."""
            ran.append((what, node.count("/release")))
            return 1 // (not fails)

        self.assertEqual((report("a"), report("b"), report.__doc__), (1, None, "Reports."))
        with self.assertRaises(ZeroDivisionError):
            report("c", fails=True)
        # The first release came before the next attempt, and a failure releases, too.
        self.assertEqual(ran, [("a", 0), ("c", 1)])
        self.wait_for("both releases", lambda: node.count("/release") == 2)
        asked = [body for _, path, body in node.seen if path.endswith("/acquire")]
        self.assertEqual([(one["min_hold_ms"], one["wait_ms"], one["label"]) for one in asked], [(600_000, 0, "host")] * 3)

    def test_what_would_outlive_its_lock_is_not_decorated(self):
        async def coroutine():
            pass

        def generator():
            yield

        for work in (coroutine, generator):
            with self.assertRaises(TypeError):
                client(self.node(works)).once("report")(work)

    def test_a_mutex_is_taken_and_released_by_its_thread(self):
        node = self.node(answers(held(), BUSY, BUSY))
        mutex = Mutex(client(node), "a", 0.2)
        self.assertTrue(mutex.acquire())
        self.assertTrue(mutex.locked())
        self.assertGreater(mutex.guard.token, 0)
        with self.assertRaises(RuntimeError):
            mutex.acquire()
        seen = []

        def other():
            seen.append((mutex.locked(), mutex.acquire(False), mutex.acquire(timeout=0), mutex.guard))
            try:
                mutex.release()
            except RuntimeError:
                seen.append("not held")

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        self.assertEqual(seen, [(False, False, False, None), "not held"])
        self.assertEqual(node.count("/release"), 0)
        mutex.release()
        self.assertEqual((mutex.locked(), node.count("/release")), (False, 1))
        for wrong in ((False, 1), (True, -2)):
            with self.assertRaises(ValueError):
                mutex.acquire(*wrong)

    def test_a_mutex_that_waits_too_long_or_was_lost_says_so(self):
        busy = self.node(but("/acquire", (202, {"state": "waiting", "position": 1})))
        self.assertFalse(Mutex(client(busy), "a").acquire(timeout=0.2))
        with self.assertRaises(TimedOut):
            with Mutex(client(busy), "a", 0.2):
                self.fail("it was not granted")
        lost = Mutex(client(self.node(but("/release", (200, {"released": False})))), "a")
        lost.acquire()
        with self.assertRaises(LeaseOver):
            lost.release()
        self.assertTrue(lost.acquire(), "it can be taken after its release")


if __name__ == "__main__":
    unittest.main()
