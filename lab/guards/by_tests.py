#!/usr/bin/env python3
"""Flips guards in the tests of the crates, and prints the first test that fails: by_tests.py [GUARD..].

Without names, the names are read from standard input, a line each; words after the name are ignored. A guard's
own crate is tested first. Exit code 1: the tests of all crates passed with some flipped guard.
"""

import json
import os
import subprocess
import sys

# Crates whose decisions are guarded, in the order of their tests.
PACKAGES = ("state", "wal", "backup", "history", "transport", "sessions", "consensus", "client", "coordinator")
# Seconds after which a test's program counts as failed: a flip may make it wait without end.
LIMIT = 120
FEATURES = "rowlock-env/mutants,rowlock-state/mutants"


def build():
    """Returns (package, folder, program) of each library's tests."""
    command = ["cargo", "test", "--lib", "--tests", "--no-run", "--message-format=json", "--features", FEATURES]
    command += [word for name in ("env", *PACKAGES) for word in ("-p", f"rowlock-{name}")]
    out = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    found = []
    for line in out.splitlines():
        message = json.loads(line)
        if message.get("reason") == "compiler-artifact" and message["profile"]["test"] and message["executable"]:
            folder = os.path.dirname(message["manifest_path"])
            package = next((name for name in PACKAGES if f"/rowlock-{name}#" in message["package_id"]
                            or f"#rowlock-{name}@" in message["package_id"]), None)
            if package:
                found.append((package, folder, message["executable"]))
    return sorted(found, key=lambda it: PACKAGES.index(it[0]))


def first_failure(folder, program, guard):
    """Returns the name of a failed test, or None."""
    environment = dict(os.environ, ROWLOCK_FLIP=guard, RUST_BACKTRACE="0")
    try:
        ended = subprocess.run([program], cwd=folder, env=environment, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, errors="replace", timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return "no end"
    if ended.returncode == 0:
        return None
    failed = [line.split()[1] for line in ended.stdout.splitlines()
              if line.startswith("test ") and line.endswith("FAILED")]
    return failed[0] if failed else "the program ended"


def main():
    guards = sys.argv[1:] or [line.split()[0] for line in sys.stdin if line.strip()]
    with open("core/env/src/guards.txt", encoding="utf-8") as lines:
        files = dict(line.split() for line in lines)
    unknown = [guard for guard in guards if guard not in files]
    if unknown:
        sys.exit(f"no guard is named {', '.join(unknown)}; core/env/src/guards.txt lists all")
    programs = build()
    unseen = 0
    for guard in guards:
        own = [it for it in programs if files[guard].startswith(os.path.relpath(it[1]) + "/")]
        for package, folder, program in own + [it for it in programs if it not in own]:
            failed = first_failure(folder, program, guard)
            if failed:
                print(f"{guard:<40} {package}: {failed}", flush=True)
                break
        else:
            unseen += 1
            print(f"{guard:<40} nothing", flush=True)
    sys.exit(1 if unseen else 0)


if __name__ == "__main__":
    main()
