"""Takes a lock again and again with kazoo: `cycle.py HOSTS LOCK FILE STOP`.

Each holder adds one to the number in FILE, so two holders at once lose an addition. Ends when STOP is there, and says
how many cycles it did, and how often it heard that its session was lost.
"""

import os
import sys

from kazoo.client import KazooClient, KazooState
from kazoo.recipe.lock import Lock


class SharedLock(Lock):
    """As in contender.py."""

    _NODE_NAME = "-lock-"
    _EXCLUDE_NAMES = ["-lock-", "__lock__"]


def main():
    hosts, path, file, stop = sys.argv[1:]
    lost = []
    zk = KazooClient(hosts=hosts, timeout=30, connection_retry={"max_tries": -1}, command_retry={"max_tries": -1})
    zk.add_listener(lambda state: lost.append(state) if state == KazooState.LOST else None)
    zk.start(timeout=30)
    session = zk.client_id[0]
    cycles = 0
    while not os.path.exists(stop):
        with SharedLock(zk, path, "kazoo"):
            with open(file) as counter:
                number = int(counter.read())
            with open(file, "w") as counter:
                counter.write(str(number + 1))
        cycles += 1
    assert zk.client_id[0] == session, "another session"
    print("cycles", cycles, "lost", len(lost), flush=True)
    zk.stop()
    zk.close()


main()
