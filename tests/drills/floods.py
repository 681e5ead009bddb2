#!/usr/bin/env python3
"""Floods a running cluster and measures what a quiet client gets meanwhile.

    tests/drills/floods.py --clients 127.0.0.1:2181,127.0.0.1:2182,127.0.0.1:2183 \
        --http 127.0.0.1:8081,127.0.0.1:8082,127.0.0.1:8083 --flood reads --connections 60 --seconds 30

Kinds: reads (getData without end), writes (small setData without end), large (setData of 900 KB), openapi
(GET /v1/openapi.json on --api). A connection sends without waiting for answers, at every node. The quiet
client creates and deletes an ephemeral sequential znode and rests 20 ms; first alone (the control), then
beside the flood. Prints one JSON object; exit code 1 if the leader changed.
"""

import argparse
import json
import multiprocessing
import os
import selectors
import socket
import struct
import sys
import threading
import time
import urllib.request

FLAT = "/drill-of-floods"


def frame(body):
    return struct.pack(">i", len(body)) + body


def text(value):
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack(">i", len(raw)) + raw


ACL = struct.pack(">ii", 1, 31) + text("world") + text("anyone")


def connect(address, timeout=10.0):
    host, port = address.rsplit(":", 1)
    sock = socket.create_connection((host, int(port)), timeout=timeout)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def read_exactly(sock, count):
    data = b""
    while len(data) < count:
        part = sock.recv(count - len(data))
        if not part:
            raise ConnectionError("closed by the node")
        data += part
    return data


class Session:
    """One request at a time."""

    def __init__(self, address):
        self.sock = connect(address)
        self.sock.sendall(frame(struct.pack(">iqiq", 0, 0, 10_000, 0) + text(b"\0" * 16) + b"\0"))
        self.reply()
        self.xid = 0

    def reply(self):
        return read_exactly(self.sock, struct.unpack(">i", read_exactly(self.sock, 4))[0])

    def call(self, kind, body):
        self.xid += 1
        self.sock.sendall(frame(struct.pack(">ii", self.xid, kind) + body))
        while True:
            reply = self.reply()
            xid, _, error = struct.unpack(">iqi", reply[:16])
            if xid == self.xid:
                return error, reply[16:]

    def create(self, path, flags, data=b""):
        return self.call(1, text(path) + text(data) + ACL + struct.pack(">i", flags))

    def delete(self, path):
        return self.call(2, text(path) + struct.pack(">i", -1))


def request(kind, xid, path):
    if kind == "reads":
        return frame(struct.pack(">ii", xid, 4) + text(path) + b"\0")
    data = b"x" * (900_000 if kind == "large" else 20)
    return frame(struct.pack(">ii", xid, 5) + text(path) + text(data) + struct.pack(">i", -1))


def flood(kind, address, connections, until):
    """Sends without end on these connections, in one process; connects again when it is cut off."""
    # A flood comes from other machines: here it leaves the processors to nodes and the quiet client.
    os.nice(19)
    one = request(kind, 1, FLAT) if kind != "openapi" else \
        f"GET /v1/openapi.json HTTP/1.1\r\nHost: {address}\r\n\r\n".encode()
    chunk = one * max(1, 65_536 // len(one))
    selector = selectors.DefaultSelector()

    def begin():
        try:
            sock = connect(address)
            if kind != "openapi":
                sock.sendall(frame(struct.pack(">iqiq", 0, 0, 30_000, 0) + text(b"\0" * 16) + b"\0"))
            sock.setblocking(False)
            selector.register(sock, selectors.EVENT_READ | selectors.EVENT_WRITE, [memoryview(chunk)])
        except OSError:
            pass

    for _ in range(connections):
        begin()
    while time.time() < until:
        if not selector.get_map():
            time.sleep(0.2)
            begin()
            continue
        for key, events in selector.select(0.2):
            sock, state = key.fileobj, key.data
            try:
                if events & selectors.EVENT_READ and not sock.recv(1 << 18):
                    raise ConnectionError
                if events & selectors.EVENT_WRITE:
                    sent = sock.send(state[0])
                    state[0] = state[0][sent:] or memoryview(chunk)
            except BlockingIOError:
                continue
            except OSError:
                selector.unregister(sock)
                sock.close()
                begin()


def quiet(address, seconds):
    """Latencies of cycles in milliseconds; failures are told as a count."""
    latencies, failures, until, session = [], 0, time.time() + seconds, None
    while time.time() < until:
        started = time.time()
        try:
            session = session or Session(address)
            error, body = session.create(f"{FLAT}-queue/q-", 3)
            assert error == 0, error
            session.delete(body[4:4 + struct.unpack(">i", body[:4])[0]].decode())
            latencies.append((time.time() - started) * 1000)
        except (OSError, ConnectionError):
            failures, session = failures + 1, None
            time.sleep(0.1)
        time.sleep(0.02)
    return latencies, failures


def percentile(values, share):
    values = sorted(values)
    return round(values[min(len(values) - 1, int(len(values) * share))], 2) if values else None


def watch_probes(nodes, until, seen):
    while time.time() < until:
        for node in nodes:
            started = time.time()
            try:
                urllib.request.urlopen(f"http://{node}/livez", timeout=10).read()
            except OSError as error:
                seen["failed"] = str(error)
            seen["longest_ms"] = max(seen["longest_ms"], round((time.time() - started) * 1000, 1))
        time.sleep(0.1)


def term(nodes):
    for _ in range(50):
        for node in nodes:
            try:
                status = json.load(urllib.request.urlopen(f"http://{node}/v1/status", timeout=10))
                return status["raft"]["term"], status["raft"].get("leader")
            except (OSError, KeyError):
                time.sleep(0.1)
    return None, None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", required=True)
    parser.add_argument("--http", required=True)
    parser.add_argument("--api", default="")
    parser.add_argument("--flood", choices=["reads", "writes", "large", "openapi"], required=True)
    parser.add_argument("--connections", type=int, default=1, help="at each node")
    parser.add_argument("--seconds", type=int, default=30)
    options = parser.parse_args()
    clients, http = options.clients.split(","), options.http.split(",")
    targets = options.api.split(",") if options.flood == "openapi" else clients
    setup = Session(clients[0])
    setup.create(FLAT, 0, b"x" * 20)
    setup.create(f"{FLAT}-queue", 0)
    before, (control, _) = term(http), quiet(clients[0], min(10, options.seconds))
    until = time.time() + options.seconds
    floods = [multiprocessing.Process(target=flood, args=(options.flood, target, options.connections, until))
              for target in targets]
    for process in floods:
        process.start()
    time.sleep(0.5)
    probes = {"longest_ms": 0.0}
    watcher = threading.Thread(target=watch_probes, args=(http, until, probes))
    watcher.start()
    beside, failures = quiet(clients[0], options.seconds - 1)
    watcher.join()
    for process in floods:
        process.join(timeout=15)
        process.kill()
    after = term(http)
    report = {
        "flood": options.flood, "connections_at_each_node": options.connections, "seconds": options.seconds,
        "control": {"cycles": len(control), "p50_ms": percentile(control, 0.5), "p99_ms": percentile(control, 0.99)},
        "beside": {"cycles": len(beside), "p50_ms": percentile(beside, 0.5), "p99_ms": percentile(beside, 0.99),
                   "longest_ms": percentile(beside, 1.0), "cut_off": failures},
        "livez": probes, "term_before": before[0], "term_after": after[0], "leader_changed": before != after,
    }
    print(json.dumps(report))
    return 1 if before != after else 0


if __name__ == "__main__":
    sys.exit(main())
