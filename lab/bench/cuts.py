#!/usr/bin/env python3
"""Measures how long no client is served when the network between nodes is cut or a leader is stopped. Needs root and `ip`.

    lab/bench/cuts.py [--bin PATH] [--voters 3,5,7] [--seconds 12]

Each node runs in a network namespace of its own. Cut links lose packets silently. At each node one client takes and
releases a lock in a loop; a gap is the longest time between two grants at any node, from the cut until `--seconds` after
it, and likewise after the links are healed. Bars: bridges (halves, middle) 5 s, stopped and isolated 3 s. For a star the
cluster promises nothing (docs/guarantees.md): a hub whose log is behind is not elected.

stopped    the leader is stopped (SIGSTOP) and continued
isolated   the leader is cut off from all others
halves     two halves without a link between them, and one node with links to all; the leader is in a half
middle     the same, and the leader is the node with links to all
star       the only links left are those of one follower
star-cut   the same, and the leader has no link at all
"""
import argparse, ctypes, itertools, os, signal, subprocess, sys, threading, time

import elections

libc = ctypes.CDLL("libc.so.6", use_errno=True)
NONE = float("inf")
BARS = {"stopped": 3, "isolated": 3, "halves": 5, "middle": 5, "star": NONE, "star-cut": NONE}
# No interface has this address: packets to it are lost.
NOWHERE = "02:00:00:00:00:01"


def ip(*words, check=True):
    subprocess.run(["ip", *map(str, words)], check=check, stdout=subprocess.DEVNULL, stderr=None if check else subprocess.DEVNULL)


class Separated(elections.Rowlock):
    """Cluster with a network namespace per node."""

    def __init__(self, program, count):
        self.tag = f"rl{os.getpid() % 10000}"
        ip("link", "add", f"{self.tag}b", "type", "bridge")
        ip("link", "set", f"{self.tag}b", "up")
        for node in range(1, count + 1):
            space, end = f"{self.tag}n{node}", f"{self.tag}v{node}"
            ip("netns", "add", space)
            ip("link", "add", end, "type", "veth", "peer", "name", "eth0", "netns", space)
            ip("link", "set", end, "master", f"{self.tag}b", "up")
            ip("-n", space, "addr", "add", f"10.77.0.{node}/24", "dev", "eth0")
            ip("-n", space, "link", "set", "eth0", "up")
            ip("-n", space, "link", "set", "lo", "up")
        super().__init__(program, settings='[peer]\nsecurity = "none"', count=count, peer_host=lambda node: f"10.77.0.{node}")

    def command(self, node):
        return ["ip", "netns", "exec", f"{self.tag}n{node}", *super().command(node)]

    def enter(self, node):
        """Moves this thread into the namespace of a node."""
        with open(f"/var/run/netns/{self.tag}n{node}") as space:
            if libc.setns(space.fileno(), 0x40000000):
                raise OSError(ctypes.get_errno(), "setns")

    def status(self, node):
        found = []

        def ask():
            self.enter(node)
            found.append(elections.Rowlock.status(self, node))

        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        return found[0] if found else None

    def cut(self, a, b):
        for here, there in ((a, b), (b, a)):
            ip("-n", f"{self.tag}n{here}", "neigh", "replace", f"10.77.0.{there}", "lladdr", NOWHERE, "dev", "eth0", "nud", "permanent")

    def heal(self):
        for here in self.ports:
            ip("-n", f"{self.tag}n{here}", "neigh", "flush", "nud", "permanent", "dev", "eth0")

    def end(self):
        super().end()
        for node in self.ports:
            ip("netns", "del", f"{self.tag}n{node}", check=False)
        ip("link", "del", f"{self.tag}b", check=False)


class Probes:
    """One client per node: acquires and releases a lock in a loop, and keeps the times of the grants."""

    def __init__(self, it):
        self.it, self.times, self.goes_on = it, [], True
        self.threads = [threading.Thread(target=self.run, args=(node,)) for node in it.ports]
        for thread in self.threads:
            thread.start()

    def run(self, node):
        self.it.enter(node)
        while self.goes_on:
            if self.it.write_at(node, f"probe-{node}", 1):
                self.times.append(time.monotonic())
            time.sleep(0.02)

    def gap(self, start, end):
        seen = sorted([at for at in self.times if start <= at <= end] + [start, end])
        return max(after - before for before, after in itertools.pairwise(seen))

    def end(self):
        self.goes_on = False
        for thread in self.threads:
            thread.join()


def links_to_cut(shape, leader, nodes):
    others = [node for node in nodes if node != leader]
    pairs = list(itertools.combinations(nodes, 2))
    if shape == "isolated":
        return [(leader, node) for node in others]
    if shape in ("halves", "middle"):
        middle = leader if shape == "middle" else others[0]
        rest = [node for node in [leader, *others] if node != middle]
        half = set(rest[: len(rest) // 2])
        return [(a, b) for a, b in pairs if middle not in (a, b) and (a in half) != (b in half)]
    if shape in ("star", "star-cut"):
        hub = others[0]
        return [(a, b) for a, b in pairs if hub not in (a, b) or (shape == "star-cut" and leader in (a, b))]
    return []


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default="target/release/rowlock")
    parser.add_argument("--voters", default="3,5,7")
    parser.add_argument("--shapes", default=",".join(BARS))
    parser.add_argument("--seconds", type=float, default=12)
    options = parser.parse_args()
    missed = 0
    print("| voters | shape | gap s | after healing s | bar s | terms |\n|---|---|---|---|---|---|", flush=True)
    for count in map(int, options.voters.split(",")):
        it = Separated(options.bin, count)
        try:
            for shape in options.shapes.split(","):
                leader, before, _ = it.leader(60)
                assert leader, f"no leader: see the logs in {it.folder}"
                probes = Probes(it)
                time.sleep(2)
                start = time.monotonic()
                if shape == "stopped":
                    it.running[leader].send_signal(signal.SIGSTOP)
                for a, b in links_to_cut(shape, leader, list(it.ports)):
                    it.cut(a, b)
                time.sleep(options.seconds)
                healed = time.monotonic()
                it.running[leader].send_signal(signal.SIGCONT)
                it.heal()
                time.sleep(options.seconds / 2)
                end = time.monotonic()
                probes.end()
                gaps = probes.gap(start, healed), probes.gap(healed, end)
                missed += max(gaps) > BARS[shape]
                print(f"| {count} | {shape} | {gaps[0]:.2f} | {gaps[1]:.2f} | {BARS[shape]} | {it.term() - before} |", flush=True)
        finally:
            it.end()
    print(f"{missed} missed")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
