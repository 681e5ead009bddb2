#!/usr/bin/env python3
"""Measures how long three nodes are without a leader: real processes, slow flushes, a busy machine, etcd beside them.

    lab/bench/elections.py flushes [--bin PATH] [--ms 20,60,100,150,300,1000] [--ways kill,transfer,stop] [--rounds 1]
    lab/bench/elections.py kill    [--bin PATH] [--other PATH] [--rounds 50]
    lab/bench/elections.py busy    [--bin PATH] [--loops 60] [--seconds 120]

`flushes`: all flushes of all nodes take so long; the leader is killed, hands over, or is stopped (SIGSTOP). Prints the
seconds until another node leads and serves, and by how much the term has grown. The bar: 1 s + 6 flushes, 5 terms.
`kill`: kill -9 of the leader, seconds until a lock is granted; with --other in turns with another program.
`busy`: three idle nodes of Rowlock, and of etcd if it is installed, beside busy loops: changes of the leader, and the
part of the time in which a write is answered within a second.
"""
import argparse, base64, datetime, hashlib, json, os, shutil, signal, socket, statistics, subprocess, sys, tempfile, time, urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))


def free_port(taken=set()):
    while True:
        with socket.socket() as it:
            it.bind(("127.0.0.1", 0))
            port = it.getsockname()[1]
        if port not in taken:
            taken.add(port)
            return port


def get(url, timeout=0.5, data=None, headers={}):
    request = urllib.request.Request(url, data=data, headers=headers)
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return json.load(answer)


class Rowlock:
    name = "rowlock"

    def __init__(self, program, settings="", slow=None, count=3, peer_host=lambda _: "127.0.0.1"):
        self.program, self.count = os.path.abspath(program), count
        self.folder = tempfile.mkdtemp(prefix="rowlock-elections-")
        self.environment, self.running = dict(os.environ), {}
        self.slow = None
        if slow:
            library = f"{self.folder}/slow_flush.so"
            source = f"{HERE}/../../tests/support/slow_flush.c"
            subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
            self.slow = f"{self.folder}/slow"
            os.mkdir(self.slow)
            self.environment.update(LD_PRELOAD=library, SLOW_FLUSHES=self.slow)
        self.ports = {n: [free_port() for _ in range(4)] for n in range(1, count + 1)}
        digest = "super:" + base64.b64encode(hashlib.sha1(b"super:test").digest()).decode()
        self.environment["ROWLOCK_AUTH"] = "digest:super:test"
        text = f'name = "elections"\n{settings}\n[client]\nsuper_digest = "{digest}"\n'
        for node, (client, peer, http, api) in self.ports.items():
            text += f'[[node]]\nid = {node}\nclient = "127.0.0.1:{client}"\npeer = "{peer_host(node)}:{peer}"\n'
            text += f'http = "127.0.0.1:{http}"\napi = "127.0.0.1:{api}"\n'
        self.config = f"{self.folder}/cluster.toml"
        with open(self.config, "w") as file:
            file.write(text)
        os.chmod(self.config, 0o600)
        for node in self.ports:
            self.start(node)
        self.leader(60)

    def command(self, node):
        return [self.program, "serve", "--node", str(node), "--config", self.config]

    def start(self, node):
        log = open(f"{self.folder}/node-{node}.log", "a")
        self.running[node] = subprocess.Popen(
            self.command(node), env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder
        )

    def flushes(self, ms):
        with open(f"{self.slow}/all", "w") as file:
            file.write(str(ms))

    def status(self, node):
        try:
            return get(f"http://127.0.0.1:{self.ports[node][2]}/v1/status")
        except (OSError, ValueError):
            return None

    def leader(self, seconds, other_than=None):
        """Returns the serving leader, its term, and the time of the observation."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for node in self.running:
                if node == other_than:
                    continue
                status = self.status(node)
                if status and status["serving"] and status["raft"]["role"] == "leader":
                    return node, status["raft"]["term"], time.monotonic()
            time.sleep(0.01)
        return None, max((s["raft"]["term"] for s in map(self.status, self.running) if s), default=0), None

    def hands_over(self, node):
        with open(f"{self.folder}/node-{node}.log") as log:
            said = [line.split()[0] for line in log if "handing leadership over" in line]
        if not said:
            return None
        at = datetime.datetime.fromisoformat(said[-1].replace("Z", "+00:00")).timestamp()
        return time.monotonic() - (time.time() - at)

    def write(self, timeout):
        """Acquires and releases a lock by HTTP at any node."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            if any(self.write_at(node, "probe", max(0.05, end - time.monotonic())) for node in self.running):
                return True
            time.sleep(0.005)
        return False

    def write_at(self, node, lock, timeout):
        url, kind = f"http://127.0.0.1:{self.ports[node][3]}/v1/locks/{lock}", {"content-type": "application/json"}
        try:
            body = json.dumps({"ttl_ms": 10000, "wait_ms": 0}).encode()
            lease = get(f"{url}/acquire", timeout, body, kind)
            body = json.dumps({"secret": lease["secret"], "token": lease["token"]}).encode()
            get(f"{url}/release", timeout, body, kind)
            return True
        except urllib.error.HTTPError as error:
            return error.code == 409
        except (OSError, ValueError, KeyError):
            return False

    def term(self):
        return max((s["raft"]["term"] for s in map(self.status, self.running) if s), default=0)

    def end(self):
        for process in self.running.values():
            process.send_signal(signal.SIGCONT)
            process.kill()
        for process in self.running.values():
            process.wait()
        if not os.environ.get("KEEP"):
            shutil.rmtree(self.folder, ignore_errors=True)


class Etcd:
    name = "etcd"

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="etcd-elections-")
        self.ports = [(free_port(), free_port()) for _ in range(3)]
        members = ",".join(f"n{n}=http://127.0.0.1:{peer}" for n, (_, peer) in enumerate(self.ports))
        self.running = []
        for n, (client, peer) in enumerate(self.ports):
            url, peers = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
            command = ["etcd", "--name", f"n{n}", "--data-dir", f"{self.folder}/{n}", "--listen-client-urls", url]
            command += ["--advertise-client-urls", url, "--listen-peer-urls", peers]
            command += ["--initial-advertise-peer-urls", peers, "--initial-cluster", members, "--enable-v2=false"]
            log = open(f"{self.folder}/{n}.log", "a")
            self.running.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
        end = time.monotonic() + 60
        while not self.write(1) and time.monotonic() < end:
            pass

    def write(self, timeout):
        end, body = time.monotonic() + timeout, json.dumps({"key": "cHJvYmU=", "value": "eA=="}).encode()
        while time.monotonic() < end:
            for client, _ in self.ports:
                try:
                    get(f"http://127.0.0.1:{client}/v3/kv/put", max(0.05, end - time.monotonic()), body)
                    return True
                except (OSError, ValueError):
                    pass
        return False

    def term(self):
        found = 0
        for client, _ in self.ports:
            try:
                answer = get(f"http://127.0.0.1:{client}/v3/maintenance/status", 2, b"{}")
                found = max(found, int(answer["raftTerm"]))
            except (OSError, ValueError, KeyError):
                pass
        return found

    def end(self):
        for process in self.running:
            process.kill()
        for process in self.running:
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def flushes(options):
    print("| flush ms | way | leader after s | bar s | terms |\n|---|---|---|---|---|", flush=True)
    missed = 0
    for ms in map(int, options.ms.split(",")):
        for way in options.ways.split(","):
            for _ in range(options.rounds):
                it = Rowlock(options.bin, slow=True)
                it.flushes(ms)
                time.sleep(3 + ms / 200)
                old, before, _ = it.leader(30)
                assert old, f"no leader: see the logs in {it.folder}"
                since, mover = time.monotonic(), None
                if way == "kill":
                    it.running[old].kill()
                elif way == "stop":
                    it.running[old].send_signal(signal.SIGSTOP)
                else:
                    to = str(old % 3 + 1)
                    command = [it.program, "member", "transfer-leader", "--config", it.config, to]
                    environment = {**it.environment, "LD_PRELOAD": ""}
                    mover = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
                new, term, at = it.leader(60, old)
                if way == "transfer":
                    # The old leader serves until it hands over, and its log shows the time.
                    since = it.hands_over(old) or since
                took, bar = (at or time.monotonic()) - since, 1 + 6 * ms / 1000
                # Followers detect a paused leader by its silence.
                bar += 2 if way == "stop" else 0
                is_missed = at is None or took > bar or term - before > 5
                missed += is_missed
                said = ""
                if mover:
                    out = mover.communicate(timeout=60)[0].strip().splitlines()
                    said = f" (exit {mover.returncode}{': ' + out[-1] if mover.returncode and out else ''})"
                shown = f"{took:.2f}" if at else "none in 60"
                print(f"| {ms} | {way}{said} | {shown} | {bar:.2f} | {term - before} |", flush=True)
                if mover and mover.poll() is None:
                    mover.kill()
                it.end()
    print(f"{missed} missed")
    return missed


def kill(options):
    programs = [options.bin] + ([options.other] if options.other else [])
    took = {program: [] for program in programs}
    clusters = {program: Rowlock(program) for program in programs}
    for _ in range(options.rounds):
        for program, it in clusters.items():
            assert it.write(30), "the cluster does not serve"
            leader, _, _ = it.leader(60)
            since = time.monotonic()
            process = it.running.pop(leader)
            process.kill()
            assert it.write(60), "no grant in a minute"
            took[program].append(time.monotonic() - since)
            if os.environ.get("KEEP"):
                print(f"{took[program][-1]:.3f} s until {time.strftime('%H:%M:%S')}, {it.folder}", flush=True)
            process.wait()
            it.start(leader)
            end = time.monotonic() + 30
            while not (it.status(leader) or {}).get("serving") and time.monotonic() < end:
                time.sleep(0.05)
            time.sleep(0.5)
    for program, it in clusters.items():
        found = sorted(took[program])
        print(f"{program}: median {statistics.median(found):.3f} s, worst {found[-1]:.3f} s of {len(found)}")
        it.end()


def busy(options):
    systems = [Rowlock(options.bin)]
    if shutil.which("etcd"):
        systems.append(Etcd())
    else:
        print("etcd is not installed: left out")
    loops = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(options.loops)]
    before, served, asked = [it.term() for it in systems], [0] * len(systems), 0
    end = time.monotonic() + options.seconds
    try:
        while time.monotonic() < end:
            asked += 1
            for n, it in enumerate(systems):
                served[n] += it.write(1)
            time.sleep(1)
    finally:
        for loop in loops:
            loop.kill()
        for loop in loops:
            loop.wait()
    time.sleep(1)
    load = os.getloadavg()[0]
    for n, it in enumerate(systems):
        print(f"{it.name}: {it.term() - before[n]} terms, {100 * served[n] / asked:.0f} % of {asked} writes answered within 1 s, load {load:.0f}")
        it.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["flushes", "kill", "busy"])
    parser.add_argument("--bin", default="target/release/rowlock")
    parser.add_argument("--other")
    parser.add_argument("--ms", default="20,60,100,150,300,1000")
    parser.add_argument("--ways", default="kill,transfer,stop")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--loops", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=120)
    options = parser.parse_args()
    options.rounds = options.rounds or (50 if options.what == "kill" else 1)
    sys.exit(1 if {"flushes": flushes, "kill": kill, "busy": busy}[options.what](options) else 0)


if __name__ == "__main__":
    main()
