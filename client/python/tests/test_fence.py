"""Fences in threads, and before services of WSGI and ASGI."""

import asyncio
import fcntl
import sys
import tempfile
import threading
import time
import unittest
from contextlib import contextmanager
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


def file_store(folder, wait=10.0):
    """A store for processes of one machine: a file for each lock, under flock."""

    @contextmanager
    def store(lock):
        with open(Path(folder) / lock, "a+") as file:
            until = time.monotonic() + wait
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= until:
                        raise TimeoutError from None
                    time.sleep(0.001)
            file.seek(0)
            fence = Fence(int(file.read() or 0))
            yield fence
            file.truncate(0)
            file.write(str(fence.seen))

    return store


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
        self.assertEqual(other._gate._locks["a"]._turns, [])

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
            while len(fenced._gate._locks["slow"]._turns) < 2:
                await asyncio.sleep(0.001)
            # It stands behind the larger one.
            late = asyncio.create_task(ask_asgi(fenced, "PUT", "slow;1"))
            while len(fenced._gate._locks["slow"]._turns) < 3:
                await asyncio.sleep(0.001)
            self.assertEqual(order, ["in"])
            leave.set()
            self.assertEqual([(await task)[0] for task in (slow, later, late)], [200, 200, 412])
            self.assertEqual(order, ["in", "out", "in", "out"])

        asyncio.run(story())

    def test_a_store_keeps_only_tokens_that_the_service_has_not_refused(self):
        answers, called = [], []

        def wsgi(environ, start_response):
            called.append(environ["HTTP_ROWLOCK_FENCE"])
            if answers[-1] is None:
                raise ArithmeticError
            start_response(f"{answers[-1]} X", [])
            return [b""]

        async def asgi(scope, receive, send):
            called.append(scope["headers"][0][1].decode())
            if answers[-1] is None:
                raise ArithmeticError
            await send({"type": "http.response.start", "status": answers[-1], "headers": []})
            await send({"type": "http.response.body", "body": b""})

        with tempfile.TemporaryDirectory() as folder:
            def fresh(status, token):
                """Asks two processes of the service that have just started, one after the other."""
                answers.append(status)
                one = FenceWSGI(wsgi, ["a"], store=file_store(folder))
                other = FenceASGI(asgi, ["a"], store=file_store(folder))
                calls = [lambda: ask_wsgi(one, "PUT", header("a", token)),
                         lambda: asyncio.run(ask_asgi(other, "PUT", header("a", token)))]
                statuses = []
                for call in calls:
                    try:
                        statuses.append(call()[0])
                    except ArithmeticError:
                        statuses.append(None)
                return statuses

            for refusal in (401, 403, 400, 499):
                self.assertEqual(fresh(refusal, 2**63 - 1), [refusal, refusal])
                self.assertEqual(fresh(200, 5), [200, 200], "a stranger's token has been stored")
            # They may have written.
            self.assertEqual(fresh(500, 7), [500, 500])
            self.assertEqual(fresh(None, 8), [None, None])
            called.clear()
            self.assertEqual(fresh(200, 7), [412, 412])
            self.assertEqual(called, [], "a late holder has reached the service")
            self.assertEqual(fresh(200, 8), [200, 200])

    def test_processes_with_one_store_let_in_one_request_at_a_time(self):
        order, let = [], {token: threading.Event() for token in (1, 2, 3)}

        def app(environ, start_response):
            token = int(environ["HTTP_ROWLOCK_FENCE"].partition(";")[2])
            order.append(("in", token))
            let[token].wait(10)
            order.append(("out", token))
            start_response("200 OK", [])
            return [b""]

        async def asgi(scope, receive, send):
            token = int(scope["headers"][0][1].decode().partition(";")[2])
            order.append(("in", token))
            while not let[token].is_set():
                await asyncio.sleep(0.001)
            order.append(("out", token))
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        answers = {}
        with tempfile.TemporaryDirectory() as folder:
            def start(key, ask):
                thread = threading.Thread(target=lambda: answers.update({key: ask()[0]}))
                thread.start()
                return thread

            def one(token, **more):
                return ask_wsgi(FenceWSGI(app, ["a"], store=file_store(folder, **more)), "PUT", header("a", token))

            def other(token, **more):
                fenced = FenceASGI(asgi, ["a"], store=file_store(folder, **more))
                return asyncio.run(ask_asgi(fenced, "PUT", header("a", token)))

            for earlier, later in ((one, other), (other, one)):
                order.clear()
                for event in let.values():
                    event.clear()
                Path(folder, "a").unlink(missing_ok=True)
                threads = [start("earlier", lambda: earlier(1))]
                while order != [("in", 1)]:
                    time.sleep(0.001)
                threads.append(start("later", lambda: later(2)))
                self.assertEqual([ask(3, wait=0.05)[0] for ask in (one, other)], [503, 503])
                self.assertEqual(order, [("in", 1)], "a holder has been let in beside another")
                let[1].set()
                while ("in", 2) not in order:
                    time.sleep(0.001)
                threads.append(start("late", lambda: earlier(1)))
                let[2].set()
                for thread in threads:
                    thread.join(10)
                self.assertEqual(answers, {"earlier": 200, "later": 200, "late": 412})
                self.assertEqual(order, [("in", 1), ("out", 1), ("in", 2), ("out", 2)])

    def test_a_canceled_request_gives_the_store_up(self):
        async def story(folder):
            inside = []

            async def app(scope, receive, send):
                inside.append(scope["headers"][0][1])
                await asyncio.sleep(0 if len(inside) > 1 else 60)
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": b""})

            fenced, other = (FenceASGI(app, ["a"], store=file_store(folder)) for _ in range(2))
            running = asyncio.create_task(ask_asgi(fenced, "PUT", "a;1"))
            while not inside:
                await asyncio.sleep(0.001)
            # One waits for the store, one of the same process for its turn.
            waiting = [asyncio.create_task(ask_asgi(each, "PUT", "a;1")) for each in (other, fenced)]
            await asyncio.sleep(0.05)
            for task in (*waiting, running):
                task.cancel()
            await asyncio.gather(running, *waiting, return_exceptions=True)
            self.assertEqual([(await ask_asgi(each, "PUT", "a;1"))[0] for each in (fenced, other)], [200, 200])

        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(story(folder))


if __name__ == "__main__":
    unittest.main()
