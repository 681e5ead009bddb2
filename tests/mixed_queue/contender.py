"""One process of the mixed queue: `contender.py HOSTS LOCK WITNESS CLIENTS ROUNDS`, with kazoo.

Each client takes the lock so many times, and says on stdout which place it had and which one wrote before it.
"""

import sys
import threading

# page begin
from kazoo.client import KazooClient
from kazoo.recipe.lock import Lock


class SharedLock(Lock):
    """Stands in one queue with Curator and Rowlock: named as theirs, and waits for theirs."""

    _NODE_NAME = "-lock-"
    _EXCLUDE_NAMES = ["-lock-", "__lock__"]
# page end


def contend(name, hosts, path, witness, rounds):
    zk = KazooClient(hosts=hosts, timeout=120)
    zk.start(timeout=120)
    for _ in range(rounds):
        lock = SharedLock(zk, path, name)
        with lock:
            token = zk.exists(path + "/" + lock.node).czxid
            before, stat = zk.get(witness)
            zk.set(witness, b"%d" % token, version=stat.version)
            print("grant", name, token, before.decode(), flush=True)
    zk.stop()
    zk.close()


def main():
    hosts, path, witness, clients, rounds = sys.argv[1:]
    threads = [
        threading.Thread(target=contend, args=("kazoo-%d" % n, hosts, path, witness, int(rounds)))
        for n in range(int(clients))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


main()
