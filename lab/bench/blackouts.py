#!/usr/bin/env python3
"""Cuts the power of real nodes that hand out locks, and checks what their clients believed. Needs root, on Linux.

    sudo lab/bench/blackouts.py [--bin PATH] [--acknowledge written] [--rounds 100] [--flush-within-ms 1000] [--seed 1]

Each node's data folder is a file system of its own, in an image. Cutting the power kills the node and puts the image
of that moment back: what was not flushed is gone. The node's next run finds another boot id, which is mounted over the
kernel's. A round cuts one, two or all three nodes, in a draw also a second time soon after, and waits until each lock
was granted again.

Clients take locks by HTTP and hold them, mostly until the lease ends; others count up znodes. Checked: no two clients
believe to hold a lock at one time (from the answer until the release, or until the lease's time after the last
answered request), later holders have larger tokens, and no answered write of a znode is lost. Exit code 1 otherwise.
"""
import argparse, json, os, random, re, shutil, socket, statistics, subprocess, sys, threading, time
import urllib.error, urllib.request, uuid

import elections

# `core/state/src/restart.rs`
FORGOTTEN_MAX = 4096
LOCKS, CLIENTS, WRITERS, TTL_MS = ["a", "b", "c"], 6, 2, 1000
KIND = {"content-type": "application/json"}


class Machines(elections.Rowlock):
    """Three nodes whose power can be cut."""

    def __init__(self, program, settings):
        # Ends of nodes by exit code. 74 asks the supervisor for another start.
        self.mounted, self.exits = set(), {}
        super().__init__(program, settings + '[session]\nmin_timeout_ms = 500\nmax_timeout_ms = 2000\n', peer_host=self.prepare)

    def prepare(self, node):
        """Mounts the node's file system."""
        image, folder = f"{self.folder}/image-{node}", f"{self.folder}/data/node-{node}"
        os.makedirs(folder)
        with open(image, "wb") as file:
            file.truncate(512 << 20)
        subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
        self.mount(node)
        shutil.rmtree(f"{folder}/lost+found")
        return "127.0.0.1"

    def mount(self, node):
        image, folder = f"{self.folder}/image-{node}", f"{self.folder}/data/node-{node}"
        # The kernel flushes nothing by itself for as long as a round takes.
        subprocess.run(["mount", "-o", "loop,commit=300", image, folder], check=True)
        os.chmod(folder, 0o700)
        self.mounted.add(node)
        with open(f"{self.folder}/boot-{node}", "w") as file:
            file.write(f"{uuid.uuid4()}\n")

    def command(self, node):
        bind = f'mount --bind "{self.folder}/boot-{node}" /proc/sys/kernel/random/boot_id && exec "$@"'
        return ["unshare", "-m", "sh", "-c", bind, "sh"] + super().command(node)

    def kill(self, node):
        self.running[node].kill()
        self.running[node].wait()

    def cut(self, nodes):
        """Cuts the power of these nodes at one moment."""
        for node in nodes:
            self.running[node].kill()
        for node in nodes:
            self.running[node].wait()
            image = f"{self.folder}/image-{node}"
            subprocess.run(["cp", "--sparse=always", image, f"{image}.cut"], check=True)
        for node in nodes:
            image = f"{self.folder}/image-{node}"
            subprocess.run(["umount", f"{self.folder}/data/node-{node}"], check=True)
            os.replace(f"{image}.cut", image)
            self.mount(node)

    def revive(self):
        """Starts the nodes that have stopped: a supervisor would."""
        for node, process in self.running.items():
            code = process.poll()
            if code is not None:
                self.exits[code] = self.exits.get(code, 0) + 1
                self.start(node)

    def said(self, text):
        logs = (open(f"{self.folder}/node-{node}.log").read() for node in self.running)
        return sum(log.count(text) for log in logs)

    def zxid_before_restart(self):
        """Returns the last zxid that the restarted cluster knows of the time before, during the grace."""
        found = []
        for client, *_ in self.ports.values():
            try:
                with socket.create_connection(("127.0.0.1", client), 1) as it:
                    it.sendall(b"srvr")
                    answer = b"".join(iter(lambda: it.recv(4096), b"")).decode()
                found += [int(zxid, 16) for zxid in re.findall(r"Zxid: 0x([0-9a-f]+)", answer)]
            except OSError:
                pass
        return max(found) - FORGOTTEN_MAX - 1 if found else None

    def end(self):
        for process in self.running.values():
            process.kill()
            process.wait()
        for node in self.mounted:
            subprocess.run(["umount", f"{self.folder}/data/node-{node}"], check=False)
        super().end()


class Clients:
    """Threads that take locks and count up znodes until the end."""

    def __init__(self, machines, seed):
        self.machines, self.over = machines, threading.Event()
        # Lock, token, begin and end of each belief; the last written and answered count of each znode.
        self.beliefs, self.tried, self.answered = [], {}, {}
        of = [(self.hold, n) for n in range(CLIENTS)] + [(self.count, n) for n in range(WRITERS)]
        self.threads = [threading.Thread(target=it, args=(n, random.Random(f"{seed}/{it}/{n}"))) for it, n in of]
        for thread in self.threads:
            thread.start()

    def call(self, rng, path, body, timeout=2.0, **options):
        port = self.machines.ports[rng.choice([1, 2, 3])][3]
        return elections.get(f"http://127.0.0.1:{port}/v1/{path}", timeout, body, KIND, **options)

    def hold(self, n, rng):
        """Takes locks in turn with one lease, and opens another lease after an error."""
        lease = None
        while not self.over.is_set():
            sent = time.monotonic()
            try:
                if lease is None:
                    lease = self.call(rng, "leases", json.dumps({"ttl_ms": TTL_MS}).encode())
                lock = rng.choice(LOCKS)
                body = {"secret": lease["secret"], "wait_ms": 400, "label": f"client {n}"}
                held = self.call(rng, f"locks/{lock}/acquire", json.dumps(body).encode())
            except (OSError, ValueError):
                # The lease may hold the lock: it is left to its end.
                lease = None
                time.sleep(0.02)
                continue
            if held.get("state") == "held":
                belief = [lock, int(held["token"]), time.monotonic(), sent + held["valid_for_ms"] / 1000]
                self.beliefs.append(belief)
                is_free = self.keep(belief, lease, rng)
            else:
                is_free = self.release(rng, lock, {"secret": lease["secret"], "request_id": held["request_id"]})
            lease = lease if is_free else None

    def keep(self, belief, lease, rng):
        """Holds the lock for a while, or longer than the power is gone. Returns whether it was released."""
        until, secret = time.monotonic() + rng.choice([0, 0, 0, 0, 0, 0.02, 0.1, 2]), lease["secret"]
        while not self.over.is_set():
            left = min(until, belief[3]) - time.monotonic()
            if left <= 0:
                break
            time.sleep(min(left, TTL_MS / 4000))
            sent = time.monotonic()
            if sent >= until or sent >= belief[3]:
                break
            try:
                kept = self.call(rng, f"leases/{lease['lease']}/keepalive", json.dumps({"secret": secret}).encode(), 0.3)
                # A client that gave up in the meantime does not believe again.
                if time.monotonic() < belief[3]:
                    belief[3] = max(belief[3], sent + kept["valid_for_ms"] / 1000)
            except urllib.error.HTTPError as error:
                if error.code == 404:
                    break
            except (OSError, ValueError):
                pass
        belief[3] = min(belief[3], time.monotonic())
        return self.release(rng, belief[0], {"secret": secret, "token": str(belief[1])})

    def release(self, rng, lock, body):
        try:
            self.call(rng, f"locks/{lock}/release", json.dumps(body).encode())
            return True
        except (OSError, ValueError):
            return False

    def count(self, n, rng):
        name, value, is_there = f"count-{n}", 0, False
        while not self.over.is_set():
            value += 1
            self.tried[name] = value
            try:
                self.write(rng, name, str(value).encode(), "PUT" if is_there else "POST")
                self.answered[name], is_there = value, True
            except urllib.error.HTTPError as error:
                is_there = is_there or error.code == 409
            except (OSError, ValueError):
                pass
            # Each write flushes all grants before it.
            time.sleep(rng.choice([0, 0.02, 0.2, 1.5, 3]))

    def write(self, rng, name, data, method):
        port = self.machines.ports[rng.choice([1, 2, 3])][3]
        request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/znodes/{name}", data=data, method=method)
        urllib.request.urlopen(request, timeout=2).read()

    def read(self, name):
        for _ in range(100):
            for node in self.machines.ports:
                try:
                    url = f"http://127.0.0.1:{self.machines.ports[node][3]}/v1/znodes/{name}"
                    return int(urllib.request.urlopen(url, timeout=2).read())
                except urllib.error.HTTPError as error:
                    if error.code == 404:
                        return 0
                except (OSError, ValueError):
                    time.sleep(0.05)
        raise SystemExit(f"{name} cannot be read")

    def has_served(self, since):
        return {belief[0] for belief in list(self.beliefs) if belief[2] > since} == set(LOCKS)


def breaches(clients):
    """Returns what no client should have seen."""
    found = []
    for lock in LOCKS:
        held = sorted(belief for belief in clients.beliefs if belief[0] == lock)
        for before, after in zip(held, held[1:]):
            if before[1] == after[1]:
                found.append(f"{lock}: two holders have the token {after[1]}")
        by_time = sorted(held, key=lambda it: it[2])
        for before, after in zip(by_time, by_time[1:]):
            if after[2] < before[3]:
                found.append(f"{lock}: two holders for {before[3] - after[2]:.3f} s, {before[1]} and {after[1]}")
            if after[1] <= before[1]:
                found.append(f"{lock}: the token {after[1]} comes behind {before[1]}")
    return found


def cut_power(machines, rng):
    """Cuts the power of some nodes, and starts the nodes again. Returns their number."""
    nodes = rng.sample([1, 2, 3], rng.choice([1, 1, 2, 2, 3, 3]))
    if rng.random() < 0.3:
        machines.kill(rng.choice([1, 2, 3]))
    machines.cut(nodes)
    time.sleep(rng.uniform(0, 0.3))
    machines.revive()
    if rng.random() < 0.4:
        time.sleep(rng.uniform(0, 1.5))
        again = rng.sample([1, 2, 3], rng.choice([1, 2, 3]))
        machines.cut(again)
        time.sleep(rng.uniform(0, 0.3))
        machines.revive()
        nodes = set(nodes) | set(again)
    return len(nodes)


def run(options):
    settings = f'[locks]\nacknowledge = "{options.acknowledge}"\nflush_within_ms = {options.flush_within_ms}\n'
    machines, rng = Machines(options.bin, settings), random.Random(options.seed)
    clients, found, lost = Clients(machines, options.seed), [], set()
    waits, restarts = {1: [], 2: [], 3: []}, 0
    try:
        for n in range(options.rounds):
            time.sleep(rng.uniform(1, 4))
            answered, begun = dict(clients.answered), time.monotonic()
            count, known, end = cut_power(machines, rng), restarts, time.monotonic() + 60
            while not clients.has_served(begun + 0.5) and time.monotonic() < end:
                machines.revive()
                time.sleep(0.05)
                if machines.said("grace begins") > known:
                    known = machines.said("grace begins")
                    base = machines.zxid_before_restart()
                    tokens = {belief[1] for belief in list(clients.beliefs)}
                    lost |= {token for token in tokens if base is not None and token > base}
            if time.monotonic() >= end:
                found.append(f"round {n}: no service within 60 s after the power of {count} was cut")
            waits[count].append(time.monotonic() - begun)
            restarts = machines.said("grace begins")
            for name, value in answered.items():
                if clients.read(name) < value:
                    found.append(f"round {n}: {name} was answered {value} and is lost")
            found += [f"round {n}: {it}" for it in breaches(clients)]
            if found:
                break
            if (n + 1) % 10 == 0:
                print(f"{n + 1} rounds, {len(clients.beliefs)} grants, {restarts} graces", flush=True)
    finally:
        clients.over.set()
        for thread in clients.threads:
            thread.join()
        found += breaches(clients)
        left_behind = machines.said("drops its state at the next start")
        machines.end()
    found += [f"a node ended with exit code {code}" for code in machines.exits if code not in (-9, 74)]
    print(f"{options.acknowledge}: {n + 1} rounds, {len(clients.beliefs)} grants, {sum(clients.answered.values())} writes; "
          f"{restarts} graces, {len(lost)} grants forgotten, {left_behind} nodes dropped their state, "
          f"{machines.exits.get(74, 0)} ends with exit code 74")
    for count, times in waits.items():
        if times:
            print(f"  power of {count} cut {len(times)} times; all locks granted again after s: median "
                  f"{statistics.median(times):.1f}, worst {max(times):.1f}")
    for it in dict.fromkeys(found):
        print("BROKEN", it)
    return bool(found)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=f"{elections.HERE}/../../target/release/rowlock")
    parser.add_argument("--acknowledge", choices=["written", "flushed"], default="written")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--flush-within-ms", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    sys.exit(run(parser.parse_args()))
