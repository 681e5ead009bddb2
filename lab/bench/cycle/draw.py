#!/usr/bin/env python3
"""Draws the time of one acquire and one release over all processes, from the kernel's own records.

    sudo python3 lab/bench/cycle/draw.py [--bin target/release] [--out docs/plots/one-cycle.svg]

Runs `rowlock-bench one --workload light --size 100` under `perf record`, takes the cycle whose acquire took the
median time, draws who ran, who waited for a processor and who flushed, and prints the sums. Needs `perf`, tracefs
and the rights to record the whole machine.
"""
import argparse
import collections
import re
import statistics
import subprocess
import sys
import tempfile

EVENTS = ["sched:sched_switch", "sched:sched_waking"] + [
    f"syscalls:sys_{side}_{call}"
    for side, call in [("enter", "fdatasync"), ("exit", "fdatasync"), ("enter", "sendto"), ("enter", "writev"), ("exit", "recvfrom")]
]
LINE = re.compile(r"^\s*(.{1,16}?)\s+(-?\d+)/(-?\d+)\s+\[(\d+)\]\s+(\d+)\.(\d{6,9}):\s+(?:\w+:)?(\w+): ?(.*)$")
FIELD = re.compile(r"(\w+)[=:] ?(\S+)")
COLORS = {"run": "#3465a4", "wait": "#f0c36d", "flush": "#cc4b37"}


def record(programs, folder):
    command = [f"{programs}/rowlock-bench", "one", "--system", "rowlock", "--workload", "light", "--size", "100"]
    command += ["--seconds", "2", "--folder", f"{folder}/servers"]
    events = [part for event in EVENTS for part in ("-e", event)]
    data = f"{folder}/perf.data"
    perf = ["perf", "record", "-q", "-a", "-m", "16M", *events, "-o", data, "--", *command]
    subprocess.run(perf, check=True, stdin=subprocess.DEVNULL)
    script = ["perf", "script", "-i", data, "-F", "comm,pid,tid,cpu,time,event,trace"]
    return subprocess.run(script, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout


class Trace:
    """Times are in microseconds since the first record."""

    def __init__(self, text):
        self.spans = collections.defaultdict(list)  # (pid, tid) -> [(kind, from, to)]
        self.names, self.calls = {}, []  # calls: (time, pid, call, result)
        since, ready, flushing, pids, first = {}, {}, {}, {}, None
        for line in text.splitlines():
            found = LINE.match(line)
            if not found:
                continue
            name, pid, tid, cpu, seconds, fraction, event, rest = found.groups()
            at = int(seconds) * 1e6 + int(fraction) / 10 ** (len(fraction) - 6)
            first = at if first is None else first
            at, pid, tid = at - first, int(pid), int(tid)
            if name.startswith(("rowlock", "tokio-rt", "history")):
                pids[tid] = pid
                self.names[tid] = name
            if event == "sched_waking":
                fields = dict(FIELD.findall(rest))
                ready.setdefault(int(fields["pid"]), at)
            elif event == "sched_switch":
                fields = dict(FIELD.findall(rest))
                before, after = int(fields["prev_pid"]), int(fields["next_pid"])
                if before in since:
                    self.add(pids, before, "run", since.pop(before), at)
                if fields["prev_state"].startswith("R"):
                    ready[before] = at
                if after in ready:
                    self.add(pids, after, "wait", ready.pop(after), at)
                since[after] = at
            elif event == "sys_enter_fdatasync":
                flushing[tid] = at
            elif event == "sys_exit_fdatasync" and tid in flushing:
                self.add(pids, tid, "flush", flushing.pop(tid), at)
            elif event in ("sys_enter_sendto", "sys_enter_writev", "sys_exit_recvfrom"):
                result = int(rest.split()[-1], 16) if event == "sys_exit_recvfrom" and rest.strip() else 0
                self.calls.append((at, pid, event.split("_", 2)[2], result if result < 1 << 31 else 0))

    def add(self, pids, tid, kind, begin, end):
        if tid in pids:
            self.spans[pids[tid], tid].append((kind, begin, end))


def cycles(trace, client):
    """Returns (first send, second send, answer to the second) of each cycle: two sends, then a pause."""
    sends = [at for at, pid, call, _ in trace.calls if pid == client and call in ("sendto", "writev")]
    answers = [at for at, pid, call, size in trace.calls if pid == client and call == "recvfrom" and size > 0]
    groups = []
    for at in sends:
        if groups and at - groups[-1][-1] < 4_000:
            groups[-1].append(at)
        else:
            groups.append([at])
    for group in groups:
        after = [at for at in answers if group[-1] < at < group[-1] + 4_000]
        if len(group) == 2 and after:
            yield group[0], group[1], after[0]


def draw(trace, window, roles, title):
    begin, end = window
    left, width, row = 190, 1100, 22
    lanes = [
        key
        for key in sorted(trace.spans, key=lambda key: (list(roles).index(key[0]) if key[0] in roles else 99, key[1]))
        if key[0] in roles and any(to > begin and since < end for _, since, to in trace.spans[key])
    ]
    height = 70 + row * len(lanes)
    x = lambda at: left + (min(max(at, begin), end) - begin) * width / (end - begin)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 20} {height}" font-family="sans-serif" font-size="12">']
    out.append(f'<rect width="100%" height="100%" fill="white"/><text x="10" y="20" font-size="14">{title}</text>')
    for place, (kind, says) in enumerate({"run": "runs", "wait": "is ready, waits for a processor", "flush": "flushes"}.items()):
        out.append(f'<rect x="{left + place * 230}" y="28" width="12" height="12" fill="{COLORS[kind]}"/><text x="{left + 16 + place * 230}" y="38">{says}</text>')
    for step in range(0, int(end - begin) + 1, 100):
        out.append(f'<line x1="{x(begin + step):.1f}" x2="{x(begin + step):.1f}" y1="46" y2="{height - 20}" stroke="#ddd"/>')
        if step % 200 == 0:
            out.append(f'<text x="{x(begin + step):.1f}" y="{height - 6}" text-anchor="middle" fill="#555">{step} µs</text>')
    for number, key in enumerate(lanes):
        top = 50 + row * number
        out.append(f'<text x="10" y="{top + 13}">{roles[key[0]]}: {trace.names.get(key[1], "?")}</text>')
        for order in ("wait", "run", "flush"):
            for kind, since, to in trace.spans[key]:
                if kind == order and to > begin and since < end:
                    deep = 5 if kind == "flush" else 14
                    out.append(f'<rect x="{x(since):.1f}" y="{top + 3}" width="{max(x(to) - x(since), 0.6):.1f}" height="{deep}" fill="{COLORS[kind]}"/>')
    return "\n".join(out + ["</svg>\n"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", default="target/release", help="folder with rowlock and rowlock-bench")
    parser.add_argument("--out", default="docs/plots/one-cycle.svg")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trace = Trace(record(args.bin, folder))
    pids = {tid: pid for pid, tid in trace.spans}
    flushed = collections.Counter(key[0] for key, spans in trace.spans.items() for kind, *_ in spans if kind == "flush")
    nodes = {pid for pid, _ in flushed.most_common(3)}
    client = next((pids[tid] for tid, name in trace.names.items() if name == "rowlock-bench" and tid in pids), None)
    if len(nodes) < 3 or client is None:
        sys.exit("the records show no three nodes and a client: is tracefs mounted, and may this user record the machine?")
    found = sorted(cycles(trace, client), key=lambda cycle: cycle[1] - cycle[0])
    if not found:
        sys.exit("the records show no whole cycle")
    begin, between, end = found[len(found) // 2]
    inside = [call for call in trace.calls if begin <= call[0] <= end]
    sent = collections.Counter(pid for _, pid, call, _ in inside if pid in nodes and call != "recvfrom")
    leader = sent.most_common(1)[0][0]
    asked = next(pid for at, pid, call, size in inside if pid in nodes and call == "recvfrom" and size > 0)
    roles = {client: "client"}
    for pid in sorted(nodes, key=lambda pid: (pid != asked, pid != leader)):
        roles[pid] = ("leader" if pid == leader else "follower") + (", asked" if pid == asked else "")
    title = f"one lock taken now and then: acquire {between - begin:.0f} µs, release {end - between:.0f} µs (median of {len(found)} cycles)"
    with open(args.out, "w", encoding="utf-8") as file:
        file.write(draw(trace, (begin - 50, end + 100), roles, title))
    print(f"{title}: {args.out}")
    for pid, role in roles.items():
        sums, woken = collections.Counter(), 0
        for (owner, _), spans in trace.spans.items():
            for kind, since, to in spans if owner == pid else ():
                overlap = min(to, end) - max(since, begin)
                sums[kind] += max(overlap, 0)
                woken += kind == "wait" and begin <= to <= end
        print(f"  {role:18} runs {sums['run']:5.0f} µs, ready {sums['wait']:5.0f} µs, flushes {sums['flush']:5.0f} µs, {woken} wake-ups")
    acquires = [cycle[1] - cycle[0] for cycle in found]
    print(f"  acquire p50 {statistics.median(acquires):.0f} µs, release p50 {statistics.median(c[2] - c[1] for c in found):.0f} µs")


if __name__ == "__main__":
    main()
