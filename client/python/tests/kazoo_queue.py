"""SharedLock beside kazoo's own locks and beside clients by HTTP, and the README's example of it: kazoo_queue.py HOSTS URL[,URL..]"""

import os
import sys
import threading
import time
import uuid
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from kazoo.client import KazooClient  # noqa: E402
from kazoo.recipe.lock import Lock, ReadLock, WriteLock  # noqa: E402
from kazoo.version import __version__ as KAZOO  # noqa: E402

from rowlock import Rowlock  # noqa: E402
from rowlock.kazoo import SharedLock, last_before  # noqa: E402

# Seconds for a step that must come true.
PATIENCE = 60.0
ROUNDS = 20
# kazoo's ReadLock waits for all WriteLocks, also for those that came later and wait for it: both wait for ever,
# at ZooKeeper too. What is ours works with these releases.
HAS_READ_LOCK = tuple(map(int, KAZOO.split(".")[:3])) not in ((2, 7, 1), (2, 8, 0))


def the_rule():
    queue = ["a-lock-0000000003", "b__READ__0000000004", "c__rlock__0000000005", "x", "d-lease-0000000009",
             "e__READ__0000000010"]
    for own, shared, before in [
        (0, False, None), (1, True, 0), (2, True, 0), (2, False, 1), (4, False, 2), (5, True, 4)
    ]:
        found = last_before(reversed(queue), queue[own], shared)
        assert found == (None if before is None else queue[before]), (own, shared, found)
    assert last_before(queue[1:], queue[2], True) is None, "readers hold together"


def until(what, holds):
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


class Taker:
    """Takes a lock in a thread and gives it back when it is told to."""

    def __init__(self, lock):
        self.has, self.leave, self.lock = threading.Event(), threading.Event(), lock
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        with self.lock:
            self.has.set()
            assert self.leave.wait(PATIENCE)


def all_wait_in_one_order(zk, path):
    """Two readers hold together; each of the others begins when all before it have gone."""
    def ours(shared):
        return SharedLock(zk, path, shared=shared, names="kazoo")

    reader = ReadLock(zk, path) if HAS_READ_LOCK else ours(True)
    locks = [ours(True), reader, WriteLock(zk, path), ours(False), Lock(zk, path), ours(True), ours(False)]
    takers = []
    for count, lock in enumerate(locks, 1):
        takers.append(Taker(lock))
        until("a place in the queue", lambda: zk.exists(path) and len(zk.get_children(path)) == count)
    for together in [(0, 1), (2,), (3,), (4,), (5,), (6,)]:
        for number in together:
            assert takers[number].has.wait(PATIENCE), number
        time.sleep(0.1)
        holding = [number for number, taker in enumerate(takers) if taker.has.is_set() and not taker.leave.is_set()]
        assert holding == list(together), holding
        for number in together:
            takers[number].leave.set()
            takers[number].thread.join(PATIENCE)


class Room:
    """What the lock guards: readers and one writer are never in it together."""

    def __init__(self):
        self.mutex, self.readers, self.writers, self.count, self.most = threading.Lock(), 0, 0, 0, 0
        self.tokens = []

    def visit(self, shared, token):
        with self.mutex:
            assert self.writers == 0 and (shared or self.readers == 0), "together with a writer"
            self.readers, self.writers = self.readers + shared, self.writers + (not shared)
            self.most = max(self.most, self.readers)
            if not shared:
                self.tokens.append(token)
        count = self.count
        time.sleep(0.002)
        if not shared:
            self.count = count + 1
        with self.mutex:
            self.readers, self.writers = self.readers - shared, self.writers - (not shared)


def nobody_is_in_it_with_a_writer(hosts, kinds):
    """`kinds`: functions that make a lock on a client, and whether it is shared; two threads of each."""
    room, failed = Room(), []

    def work(make, shared):
        zk = KazooClient(hosts=hosts, timeout=30)
        zk.start(timeout=PATIENCE)
        try:
            for _ in range(ROUNDS):
                lock = make(zk)
                with lock as guard:
                    token = guard.token if guard is not None else getattr(lock, "token", None)
                    room.visit(shared, token)
        except BaseException as error:
            failed.append(error)
        finally:
            zk.stop()
            zk.close()

    threads = [threading.Thread(target=work, args=kind, daemon=True) for kind in kinds for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "a lock was not granted"
    assert not failed, failed
    assert room.count == sum(2 * ROUNDS for _, shared in kinds if not shared), room.count
    tokens = [token for token in room.tokens if token is not None]
    assert len(tokens) > ROUNDS and tokens == sorted(set(tokens)), tokens
    return room.most


def main():
    hosts, urls = sys.argv[1], sys.argv[2].split(",")
    the_rule()
    name = f"kazoo-{uuid.uuid4().hex[:8]}"
    zk = KazooClient(hosts=hosts, timeout=30)
    zk.start(timeout=PATIENCE)
    all_wait_in_one_order(zk, f"/locks/{name}-order")
    path = f"/locks/{name}-own"
    together = nobody_is_in_it_with_a_writer(hosts, [
        (lambda zk: SharedLock(zk, path, shared=True, names="kazoo"), True),
        (lambda zk: SharedLock(zk, path, names="kazoo"), False),
        (lambda zk: WriteLock(zk, path), False), *([(lambda zk: ReadLock(zk, path), True)] if HAS_READ_LOCK else []),
    ])
    cluster, mixed = Rowlock(urls), f"/locks/{name}-mixed"
    more = nobody_is_in_it_with_a_writer(hosts, [
        (lambda zk: SharedLock(zk, mixed, shared=True), True), (lambda zk: SharedLock(zk, mixed), False),
        (lambda _: cluster.lock(f"{name}-mixed", PATIENCE, mode="shared"), True),
        (lambda _: cluster.lock(f"{name}-mixed", PATIENCE), False),
    ])
    zk.stop()
    zk.close()
    os.environ["ROWLOCK_HOSTS"] = hosts
    readme = (Path(__file__).resolve().parent.parent / "README.md").read_text()
    exec(next(text for text in readme.split("```python\n") if "KazooClient" in text).split("```")[0], {})
    print(f"kazoo {KAZOO}", "" if HAS_READ_LOCK else "without its ReadLock", "readers together:", together, more)


if __name__ == "__main__":
    main()
