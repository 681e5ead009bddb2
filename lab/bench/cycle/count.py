#!/usr/bin/env python3
"""Counts the work of three nodes for one isolated acquire and release, and in one idle second, beside the kept
figures: count.py [--keep] [--seconds 20] [--bin target/release].

A count of a cycle is the count under twenty cycles a second less the idle one. Switches, system calls and idle frames depend
on what else runs, the other counts hardly. Exit code 1: one of the others is more than 15 % above the kept one.
Needs `perf`, `ss`, tracefs and root.
"""
import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

PORT = 23181
RATE = 20  # cycles per second: each has ended long before the next begins
SETTLE = 8  # seconds until an election and its entries are over
WORSE = 1.15
DEPEND_ON_LOAD = ("voluntary switches", "system calls", "frames between nodes, idle")
TRACING = "/sys/kernel/tracing"
KEPT = os.path.join(os.path.dirname(__file__), "kept.txt")
# Counts, and the kernel's events or the functions of the program that are counted.
EVENTS = {
    "flushes": ["syscalls:sys_enter_fdatasync", "syscalls:sys_enter_fsync"],
    "system calls": ["raw_syscalls:sys_enter"],
}
FUNCTIONS = {
    "task polls": r"^tokio::runtime::task::raw::poll$",
    "allocations": r"^mi_(malloc|zalloc|realloc)_aligned$",
}


def output(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def probe(program):
    """Adds a probe at each counted function. Returns the probes' names by count."""
    segments = re.findall(r"LOAD +(0x\w+) (0x\w+) 0x\w+ (0x\w+)", output("readelf", "-lW", program))
    segments = [[int(number, 16) for number in segment] for segment in segments]
    names = {}
    for line in output("nm", "-C", program).splitlines():
        address, function = line[:16].strip(), line[19:]
        count = next((count for count, like in FUNCTIONS.items() if re.match(like, function)), None)
        if count is None:
            continue
        at = int(address, 16)
        offset = next(at - start + file for file, start, size in segments if start <= at < start + size)
        change_probes(f"p:rowlock/at_{offset:x} {os.path.realpath(program)}:{offset:#x}")
        names.setdefault(count, []).append(f"rowlock:at_{offset:x}")
    return names


def change_probes(line):
    # Python seeks to the end of a file that it appends to, which this file refuses.
    events = os.open(f"{TRACING}/uprobe_events", os.O_WRONLY | os.O_APPEND)
    try:
        os.write(events, line.encode() + b"\n")
    finally:
        os.close(events)


def remove_probes():
    with open(f"{TRACING}/uprobe_events", encoding="ascii") as events:
        ours = [line.split()[0][2:] for line in events if line.startswith("p:rowlock/at_")]
    for name in ours:
        change_probes(f"-:{name}")


def switches(pid):
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{thread}/status", encoding="ascii") as status:
                total += next(int(line.split()[1]) for line in status if line.startswith("voluntary_ctxt_switches"))
        except FileNotFoundError:  # the thread has ended
            pass
    return total


def frames():
    """Returns the number of segments with data sent between nodes so far."""
    ports = " or ".join(f"sport = :{PORT + 100 + n} or dport = :{PORT + 100 + n}" for n in range(3))
    shown = output("ss", "-tinH", "state", "established", f"( {ports} )")
    return sum(int(count) for count in re.findall(r"data_segs_out:(\d+)", shown))


def watch(pids, probes, seconds):
    """Returns counts per second of each process, by name, and of all processes frames and grants."""
    events = {**EVENTS, **probes}
    flags = [part for names in events.values() for name in names for part in ("-e", name)]
    perfs = [subprocess.Popen(["perf", "stat", "-x", ",", *flags, "-p", str(pid), "sleep", str(seconds)],
                              stderr=subprocess.PIPE, text=True) for pid in pids]
    before, sent, granted = [switches(pid) for pid in pids], frames(), grants()
    counts = []
    for pid, perf, switched in zip(pids, perfs, before):
        lines = [line.split(",") for line in perf.communicate()[1].splitlines() if line.count(",") > 4]
        seen = {line[2]: int(line[0]) for line in lines if line[0].isdigit()}
        missing = [name for names in events.values() for name in names if name not in seen]
        if missing:
            sys.exit(f"perf counted no {', '.join(missing[:3])} of process {pid}")
        count = {name: sum(seen[event] for event in of) / seconds for name, of in events.items()}
        count["voluntary switches"] = (switches(pid) - switched) / seconds
        counts.append(count)
    return counts, (frames() - sent) / seconds, (grants() - granted) / seconds


def grants():
    """Returns the number of locks that the node with the most applied entries has granted."""
    def of(place):
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT + 200 + place}/metrics", timeout=5) as answer:
            return int(re.search(rb"^rowlock_lock_grants_total (\d+)$", answer.read(), re.M)[1])
    return max(of(place) for place in range(3))


def leads(place):
    url = f"http://127.0.0.1:{PORT + 200 + place}/v1/status"
    with urllib.request.urlopen(url, timeout=5) as answer:
        return b'"role":"leader"' in answer.read().replace(b" ", b"")


def measure(programs, folder, seconds):
    up = [f"{programs}/rowlock", "up", "--no-demo", "--data", f"{folder}/up", "--base-port", str(PORT)]
    cluster = subprocess.Popen(up, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        time.sleep(SETTLE)
        pids = sorted(int(pid) for pid in output("pgrep", "-P", str(cluster.pid)).split())
        if len(pids) != 3:
            sys.exit(f"three nodes should run, and {pids} do")
        probes = probe(f"{programs}/rowlock")
        leader = next((place for place in range(3) if leads(place)), None)
        if leader is None:
            sys.exit("no node leads")
        idle, idle_frames, _ = watch(pids, probes, seconds)
        hosts = ",".join(f"127.0.0.1:{PORT + place}" for place in range(3))
        load = [f"{programs}/rowlock-bench", "one", "--system", "rowlock", "--workload", "light", "--size", str(RATE)]
        load += ["--seconds", str(seconds + 4), "--attach", hosts]
        clients = subprocess.Popen(load, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        time.sleep(3)
        busy, busy_frames, rate = watch(pids, probes, seconds)
        if clients.wait() != 0:
            sys.exit("the clients failed")
    finally:
        cluster.send_signal(signal.SIGTERM)
        cluster.wait()
        remove_probes()
    rows = {}
    for name in busy[0]:
        cycle = [(many[name] - few[name]) / rate for many, few in zip(busy, idle)]
        others = [count for place, count in enumerate(cycle) if place != leader]
        rows[f"{name}, leader"] = cycle[leader]
        rows[f"{name}, follower"] = sum(others) / 2
        rows[f"{name}, three idle nodes"] = sum(few[name] for few in idle)
    rows["frames between nodes"] = (busy_frames - idle_frames) / rate
    rows["frames between nodes, idle"] = idle_frames
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--bin", default="target/release")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(flags.bin, folder, flags.seconds)
    kept = {}
    if os.path.exists(KEPT):
        with open(KEPT, encoding="ascii") as lines:
            kept = {name: float(count) for name, count in (line.rstrip().split("\t") for line in lines)}
    worse = False
    print(f"{'per cycle, or per idle second':42}{'now':>9}{'kept':>9}")
    for name, count in rows.items():
        is_steady = name in kept and not name.startswith(DEPEND_ON_LOAD)
        is_worse = is_steady and count > kept[name] * WORSE + 0.5
        worse |= is_worse
        print(f"{name:42}{count:9.1f}{kept.get(name, float('nan')):9.1f}{'  worse' if is_worse else ''}")
    if flags.keep:
        with open(KEPT, "w", encoding="ascii") as lines:
            lines.writelines(f"{name}\t{count:.1f}\n" for name, count in rows.items())
    sys.exit(1 if worse and not flags.keep else 0)


if __name__ == "__main__":
    main()
