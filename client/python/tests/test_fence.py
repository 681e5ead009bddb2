"""Fences in threads, and before services of WSGI and ASGI."""

import asyncio
import sys
import threading
import time
import unittest
from pathlib import Path
from wsgiref.util import setup_testing_defaults

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rowlock import Fence, FenceASGI, FenceWSGI, Stale  # noqa: E402
from rowlock.fence import HEADER, header  # noqa: E402

CASES = [
    ("GET", None, 200), ("PUT", None, 428), ("PUT", "other;9", 400), ("PUT", "a%20b", 400), ("PUT", "a%20b;-1", 400),
    ("PUT", "a%20b;" + "9" * 40, 400), ("PUT", "a%20b;" + "9" * 5000, 400), ("PUT", f"a%20b;{2**63}", 400),
    ("PUT", "a%20b;\u0663", 400), ("PUT", "a%20b;1,a%20b;2", 400), ("PUT", "a%20b;", 400), ("PUT", ";1", 400),
    ("PUT", header("a b", 5), 200), ("PUT", header("a b", 4), 412), ("PUT", header("a b", 5), 200),
    ("DELETE", header("a b", 2**53 + 1), 200), ("PUT", header("a b", 2**53), 412), ("GET", header("a b", 1), 200),
]


def ask_wsgi(app, method, value):
    environ, statuses = {"REQUEST_METHOD": method}, []
    setup_testing_defaults(environ)
    environ["REQUEST_METHOD"] = method
    if value is not None:
        environ["HTTP_ROWLOCK_FENCE"] = value
    body = app(environ, lambda status, headers: statuses.append(int(status[:3])))
    text = b"".join(body)
    if hasattr(body, "close"):
        body.close()
    return statuses[0], text


async def ask_asgi(app, method, value):
    values = value if isinstance(value, list) else [] if value is None else [value]
    headers = [(HEADER.lower().encode(), each.encode("latin-1", "replace")) for each in values]
    sent = []

    async def send(message):
        sent.append(message)

    await app({"type": "http", "method": method, "headers": headers}, None, send)
    return sent[0]["status"], sent[1]["body"]


class Tests(unittest.TestCase):
    def test_a_smaller_token_is_refused(self):
        fence = Fence(7)
        self.assertEqual([fence.check(token) for token in (6, 7, 7, 2**63 - 1, 2**63 - 2)], [False, True, True, True, False])
        with self.assertRaises(Stale):
            with fence.enter(6):
                self.fail("a late holder is let in")

    def test_a_larger_token_waits_for_writes_of_smaller_ones(self):
        fence, order = Fence(), []

        def later():
            with fence.enter(2):
                order.append("later")

        with fence.enter(1):
            thread = threading.Thread(target=later)
            thread.start()
            while fence.seen < 2:
                time.sleep(0.001)
            self.assertFalse(fence.check(1), "it is refused while the larger one waits")
            order.append("earlier")
        thread.join(10)
        self.assertEqual(order, ["earlier", "later"])
        with fence.enter(2):
            with self.assertRaises(TimeoutError):
                with fence.enter(3, timeout=0.05):
                    pass
        with fence.enter(3):
            pass

    def test_wsgi_refuses_late_holders(self):
        def app(environ, start_response):
            start_response("200 OK", [])
            return [b"done"]

        fenced = FenceWSGI(app, ["a b"])
        for method, value, status in CASES:
            self.assertEqual(ask_wsgi(fenced, method, value)[0], status, (method, value))
        # A store that another process of the service has written to.
        stored = FenceWSGI(app, ["a b"], store=lambda lock, token: (lock, token) >= ("a b", 9))
        self.assertEqual([ask_wsgi(stored, "PUT", header("a b", token))[0] for token in (8, 9)], [412, 200])

    def test_wsgi_counts_a_request_until_its_response_is_closed(self):
        def app(environ, start_response):
            start_response("200 OK", [])
            return [b"done"]

        fenced = FenceWSGI(app, ["a"])
        environ = {"REQUEST_METHOD": "PUT", "HTTP_ROWLOCK_FENCE": "a;1"}
        body = fenced(environ, lambda *_: None)
        answers = []
        thread = threading.Thread(target=lambda: answers.append(ask_wsgi(fenced, "PUT", "a;2")[0]))
        thread.start()
        thread.join(0.1)
        self.assertEqual(answers, [])
        body.close()
        thread.join(10)
        self.assertEqual(answers, [200])

    def test_the_token_of_a_request_that_the_service_refuses_does_not_count(self):
        statuses = []

        def wsgi(environ, start_response):
            start_response(f"{statuses[-1]} X", [])
            return [b""]

        async def asgi(scope, receive, send):
            if statuses[-1] is None:
                raise ArithmeticError
            await send({"type": "http.response.start", "status": statuses[-1], "headers": []})
            await send({"type": "http.response.body", "body": b""})

        def both(method, value):
            return ask_wsgi(one, method, value)[0], asyncio.run(ask_asgi(other, method, value))[0]

        one, other = FenceWSGI(wsgi, ["a"]), FenceASGI(asgi, ["a"])
        for refusal in (401, 403, 400, 499):
            statuses.append(refusal)
            self.assertEqual(both("PUT", header("a", 2**63 - 1)), (refusal, refusal))
            statuses.append(200)
            self.assertEqual(both("PUT", header("a", 5)), (200, 200), refusal)
        # It may have written.
        statuses.append(500)
        self.assertEqual(both("PUT", header("a", 7)), (500, 500))
        statuses.append(200)
        self.assertEqual(both("PUT", header("a", 6)), (412, 412))
        statuses.append(None)
        with self.assertRaises(ArithmeticError):
            asyncio.run(ask_asgi(other, "PUT", header("a", 8)))
        statuses.append(200)
        self.assertEqual(asyncio.run(ask_asgi(other, "PUT", header("a", 7)))[0], 412)
        self.assertEqual(asyncio.run(ask_asgi(other, "PUT", ["a;9", "a;10"]))[0], 400)
        self.assertEqual(other._gate._locks["a"][1]._turns, [])

    def test_asgi_refuses_late_holders_and_waits_for_requests_under_way(self):
        async def story():
            leave, order = asyncio.Event(), []

            async def app(scope, receive, send):
                order.append("in")
                if (HEADER.lower().encode(), b"slow;1") in scope["headers"]:
                    await leave.wait()
                order.append("out")
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": b"done"})

            fenced = FenceASGI(app, ["a b", "slow"])
            for method, value, status in CASES:
                self.assertEqual((await ask_asgi(fenced, method, value))[0], status, (method, value))
            order.clear()
            slow = asyncio.create_task(ask_asgi(fenced, "PUT", "slow;1"))
            while not order:
                await asyncio.sleep(0.001)
            later = asyncio.create_task(ask_asgi(fenced, "PUT", "slow;2"))
            while len(fenced._gate._locks["slow"][1]._turns) < 2:
                await asyncio.sleep(0.001)
            # It stands behind the larger one.
            late = asyncio.create_task(ask_asgi(fenced, "PUT", "slow;1"))
            while len(fenced._gate._locks["slow"][1]._turns) < 3:
                await asyncio.sleep(0.001)
            self.assertEqual(order, ["in"])
            leave.set()
            self.assertEqual([(await task)[0] for task in (slow, later, late)], [200, 200, 412])
            self.assertEqual(order, ["in", "out", "in", "out"])

        asyncio.run(story())


if __name__ == "__main__":
    unittest.main()
