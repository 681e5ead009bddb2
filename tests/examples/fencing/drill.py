"""Stops a holder past its session, lets the next one write, and continues it: drill.py API ROUNDS [RESOURCE..]

Each resource is written in ROUNDS rounds with its fence and in as many without. With it, no late write may take
effect; without it, each must (or the drill would show nothing). A line for each resource; exit code 1 if one of
them has failed. A resource that is not installed is NOT TRIED.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from resources import RESOURCES
from rowlock import Rowlock

HERE = Path(__file__).resolve().parent
# Each stands still for seconds, and needs little in between.
AT_ONCE = 6


class Late:
    """A holder in a process of its own, which is stopped between its look at the lock and its write."""

    def __init__(self, arguments):
        environment = dict(os.environ, PYTHONPATH=str(HERE.parents[2] / "client" / "python"))
        self.process = subprocess.Popen([sys.executable, str(HERE / "holder.py"), *arguments], text=True, env=environment,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        said = self.process.stdout.readline().split()
        assert said[:1] == ["held"], said
        self.token = int(said[1])
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self):
        """What became of its write."""
        # The line is read as soon as it is continued.
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        self.process.send_signal(signal.SIGCONT)
        return self.process.stdout.readline().strip()

    def end(self):
        self.process.send_signal(signal.SIGCONT)
        if self.process.poll() is None:
            try:
                self.process.communicate(timeout=30)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()


def one_round(api, name, mode, lock, address, number):
    """Whether the late write has taken effect, and what it was told."""
    resource = RESOURCES[name](address)
    late = Late([api, lock, name, mode, address, f"late {number}"])
    try:
        with Rowlock(api.split(","), ttl=10).lock(lock, timeout=60) as guard:
            assert guard.token > late.token, f"{guard.token} after {late.token}"
            body = f"second {number}"
            resource.write(guard if mode == "fenced" else None, body)
            assert resource.read() == body
            said = late.go_on()
            found = resource.read()
            assert found in (body, f"late {number}"), found
            assert (found == body) == said.startswith("refused: "), f"{said}, and it has {found!r}"
            return found != body, said
    finally:
        late.end()


def drill(api, name, mode, rounds):
    lock, processes = f"fencing/{name}-{mode}-{uuid.uuid4().hex[:6]}", []
    folder = Path(tempfile.mkdtemp(prefix="rf-"))
    try:
        folder.chmod(0o755)
        address, processes = RESOURCES[name].start(folder, mode, lock, api)
        return [one_round(api, name, mode, lock, address, number) for number in range(rounds)]
    finally:
        for process in processes:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def report(name, rounds, runs):
    """The line of a resource; whether all is well."""
    why = RESOURCES[name].missing()
    if why is not None:
        return f"{name}: NOT TRIED: {why}", True
    try:
        plain, fenced = (run.result() for run in runs)
    except Exception as error:
        return f"{name}: FAILED: {type(error).__name__}: {error}", False
    damaged, harmed = sum(late for late, _ in plain), sum(late for late, _ in fenced)
    line = f"{name}: {rounds} rounds: without the fence {damaged} late writes took effect, with it {harmed}"
    is_well = damaged == rounds and harmed == 0
    return f"{line}; {fenced[-1][1]}" if is_well else f"{line}: FAILED", is_well


def main():
    api, rounds, names = sys.argv[1], int(sys.argv[2]), sys.argv[3:] or list(RESOURCES)
    began, all_well = time.monotonic(), True
    with ThreadPoolExecutor(AT_ONCE) as pool:
        runs = {}
        for name in names:
            modes = ("plain", "fenced") if RESOURCES[name].missing() is None else ()
            runs[name] = [pool.submit(drill, api, name, mode, rounds) for mode in modes]
        for name in names:
            line, is_well = report(name, rounds, runs[name])
            all_well = all_well and is_well
            print(line, flush=True)
    print(f"{time.monotonic() - began:.0f} s")
    sys.exit(0 if all_well else 1)


if __name__ == "__main__":
    main()
