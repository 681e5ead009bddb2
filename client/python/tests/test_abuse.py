"""Nodes that trickle, gateways that answer with pages, documents that are none, names that are no text."""

import asyncio
import socket
import sys
import threading
import time
import unittest
from pathlib import Path
from unittest import mock

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from nodes import PATIENCE, SHORT, TTL, Story, but, client, works  # noqa: E402
from rowlock import AsyncRowlock, Refused, Rowlock, TimedOut  # noqa: E402
from rowlock import transport  # noqa: E402
from rowlock.transport import now  # noqa: E402

PAGE = b"<html>\r\n<head><title>%s</title></head>\r\n<body></body></html>"


class Trickle:
    """A node that sends a byte of a correct answer now and then, and never ends it."""

    def __init__(self, head=b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n{"):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.head = head
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.send, args=(connection,), daemon=True).start()

    def send(self, connection):
        try:
            with connection:
                connection.recv(4096)
                connection.sendall(self.head)
                while True:
                    connection.sendall(b" ")
                    time.sleep(0.1)
        except OSError:
            pass

    def close(self):
        self.listener.close()


class Tests(Story):
    def trickle(self, *head):
        node = Trickle(*head)
        self.addCleanup(node.close)
        return node

    def test_a_node_that_trickles_is_not_waited_for(self):
        for head in ((), (b"HTTP/1.1 200 OK\r\nX-Slow:",), (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1",)):
            began = now()
            with self.assertRaises(TimedOut):
                client(self.trickle(*head), ttl=SHORT).lock("a", timeout=0.5).acquire()
            self.assertLess(now() - began, SHORT)
            node = self.node(works)
            with client(self.trickle(*head), node, ttl=SHORT).lock("a", timeout=PATIENCE) as guard:
                self.assertFalse(guard.lost)

    def test_a_request_ends_at_its_deadline_however_its_answer_trickles(self):
        one, began = transport.Transport(self.trickle().url, None, None), now()
        with self.assertRaises(TimedOut):
            one.call("POST", "/", {}, now() + 1.0, each=0.5)
        self.assertLess(now() - began, 5.0)

    def test_a_release_does_not_wait_for_a_node_that_trickles(self):
        slow, node = self.trickle(), self.node(lambda path, body: works(path, body, SHORT))
        guard = client(node, slow, ttl=SHORT).lock("a").acquire()
        # The trickling one is asked first.
        guard._transport._at = 1
        began = now()
        self.assertTrue(guard.release())
        self.assertLess(now() - began, SHORT)

    def test_a_lock_is_kept_although_a_node_answers_what_is_no_document(self):
        deep = [b"[" * 100_000, b'{"valid_for_ms":' * 100_000, b"[" * 500 + b"]" * 500,
                b'{"valid_for_ms":1,"detail":' + b"[" * 900 + b"]" * 900 + b"}"]
        for answer in deep:
            bad, good = self.node(but("/keepalive", (200, answer), SHORT)), self.node(lambda p, b: works(p, b, SHORT))
            with client(bad, good, ttl=SHORT).lock("a") as guard:
                deadline = guard._lease.deadline
                self.wait_for("keep-alive", lambda: guard._lease.deadline > deadline)
                self.assertFalse(guard.lost, answer[:20])
                self.assertGreater(bad.count("/keepalive"), 0)

    def test_a_document_with_many_levels_is_refused_and_a_usual_one_is_read(self):
        usual = b'{"a": [{"b": [{"c": [1, {}]}]}]}'
        self.assertEqual(transport.document(usual)["a"][0]["b"][0]["c"][0], 1)
        for text in (b"[]", b"7", b"", b"\xff", b'{"a":' * 40 + b"1" + b"}" * 40):
            with self.assertRaises(ValueError):
                transport.document(text)

    def test_a_gateways_page_is_an_error_with_its_status_and_first_line(self):
        for status, title in ((400, b"Plain HTTP to an HTTPS port"), (401, b"Sign in"), (403, b"No entry")):
            node = self.node(lambda _path, _body: (status, PAGE % title))
            with self.assertRaisesRegex(Refused, f"{status}: {title.decode()}") as refused:
                client(node).lock("a").acquire()
            self.assertEqual((refused.exception.status, len(node.seen)), (status, 1))
        for status in (404, 429, 502, 503):
            node = self.node(lambda _path, _body: (status, PAGE % b"Not now"))
            one = transport.Transport(node.url, None, None)
            with self.assertRaisesRegex(TimedOut, f"{status} Not now"):
                one.call("POST", "/", {}, now() + 0.5)
            with mock.patch.object(transport, "STRANGE_MAX", 0.3), self.assertRaisesRegex(Refused, "Not now"):
                client(node).lock("a").acquire()
        with mock.patch.object(transport, "STRANGE_MAX", 0.3), self.assertRaisesRegex(Refused, "404: an empty answer"):
            client(self.node(but("/v1/leases", (404, b"")))).lock("a").acquire()

    def test_a_path_of_a_url_stands_before_that_of_each_request(self):
        def script(path, body):
            self.assertTrue(path.startswith("/gw/a%20b/v1/"), path)
            return works(path[len("/gw/a%20b"):], body)

        node = self.node(script)
        for path in ("/gw/a%20b", "/gw/a b//"):
            self.assertTrue(Rowlock(node.url.replace("http", "HTTP") + path, ttl=TTL).lock("a").acquire().release())

    def test_names_that_are_no_text_and_times_that_are_none_are_refused(self):
        node = self.node(works)
        for name in ("a\ud800", "\udc00/b"):
            with self.assertRaises(ValueError):
                client(node).lock(name)
        for ttl in (0, -1, float("nan"), float("inf"), 1e-9):
            with self.assertRaises(ValueError):
                client(node, ttl=ttl)
        for url in ("ftp://h", "http://", "h:1", "http://u:p@h", "http://h?a=b", "http://h/#a"):
            with self.assertRaises(ValueError):
                Rowlock(url)
        Rowlock("http://a_b:1")

    def test_whatever_on_waiting_raises_and_a_timeout_of_the_loop_give_the_place_back(self):
        for error in (KeyboardInterrupt, SystemExit, RecursionError):
            node = self.node(but("/acquire", (202, {"state": "waiting", "position": 1})))

            def raises(_position):
                raise error

            with self.assertRaises(error):
                client(node).lock("a", on_waiting=raises).acquire()
            self.wait_for("the end of the lease", lambda: node.ended == 1)

        async def waits():
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(AsyncRowlock(node.url, ttl=TTL).lock("a").acquire(), 0.5)

        node = self.node(but("/acquire", (202, {"state": "waiting", "position": 1})))
        asyncio.run(waits())
        self.wait_for("the end of the lease", lambda: node.ended == 1)


if __name__ == "__main__":
    unittest.main()
