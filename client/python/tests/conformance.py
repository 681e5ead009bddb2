"""Runs conformance.json and the README's first three examples: conformance.py URL[,URL..]"""

import asyncio
import json
import os
import sys
import threading
import time
import uuid
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from rowlock import AsyncRowlock, Busy, Fence, LeaseOver, Observer, Refused, Rowlock, Stale, TimedOut  # noqa: E402

SCENARIOS = HERE.parent.parent / "conformance.json"
# Seconds of a lease: short, but longer than the pauses of a busy machine.
TTL = 6.0
# Seconds for a step that must come true.
PATIENCE = 60.0
VERSION = 5
# Where a gateway answers as the first level of the path says; None: the scenarios that need it are left out.
GATEWAY = os.environ.get("ROWLOCK_GATEWAY")


class Thrown(BaseException):
    """What a program's callback throws."""


def clients_urls(urls, step):
    """The URLs of the client of an attempt."""
    if "through" in step:
        return [f"{GATEWAY}/{step['through']}"]
    return [f"{GATEWAY}/{step['before']}", *urls] if "before" in step else urls


def name_of(prefix, step):
    if "units" in step:
        return f"{prefix}/{''.join(map(chr, step['units']))}"
    return f"{prefix}/{step['lock']}" if "lock" in step else f"/locks/{prefix}/{step['path']}"


class Seen(Observer):
    """What an observer has got."""

    def __init__(self):
        self.in_progress, self.wait, self.hold = 0, None, None

    def waiting(self, name, lock):
        self.in_progress += 1

    def waited(self, wait):
        self.in_progress -= 1
        self.wait = wait

    def held(self, hold):
        self.hold = hold


class Attempt:
    """An attempt in a thread."""

    def __init__(self, urls, prefix, step, client=None):
        self.waits = threading.Event()
        self.guard = None
        self.outcome = None
        self.error = None
        self.began = time.monotonic()
        self.throws = step.get("throws")
        timeout = step["timeout_ms"] / 1000
        modes = {key: step[key] for key in ("mode", "permits", "limit") if key in step}
        self.client = client or Rowlock(clients_urls(urls, step), ttl=TTL, observer=Seen())
        self.aborted = False
        self.thread = threading.Thread(target=self.run, daemon=True)
        try:
            self.lock = self.client.lock(name_of(prefix, step), timeout, on_waiting=self.on_waiting, **modes)
        except ValueError:
            self.outcome = "invalid"
            return
        outside = step.get("outside_ms")
        self.take = self.lock.acquire if outside is None else lambda: self.within(urls, prefix, step, outside / 1000)
        self.thread.start()

    def on_waiting(self, _position):
        self.waits.set()
        if self.throws:
            raise Thrown

    def within(self, urls, prefix, step, seconds):
        """As a coroutine whose time the loop bounds."""
        lock = AsyncRowlock(urls, ttl=TTL).lock(name_of(prefix, step), on_waiting=self.on_waiting)
        return asyncio.run(asyncio.wait_for(lock.acquire(), seconds))

    def run(self):
        try:
            self.guard = self.take()
            self.outcome = "held"
        except BaseException as error:
            self.outcome, self.error = self.name(error), error
        self.took = time.monotonic() - self.began

    def name(self, error):
        if isinstance(error, Refused):
            return {422: "refused", 400: "invalid"}.get(error.status, f"refused {error.status}")
        if isinstance(error, LeaseOver):
            return "aborted" if self.aborted else repr(error)
        kinds = {Busy: "busy", TimedOut: "timeout", Thrown: "thrown", asyncio.TimeoutError: "aborted"}
        return kinds.get(type(error), repr(error))

    def check(self, expected):
        """Compares what the client's observer has got."""
        seen, until = self.client._observer, time.monotonic() + PATIENCE
        while "hold" in expected and seen.hold is None and time.monotonic() < until:
            time.sleep(0.01)
        found = {"waiting": seen.in_progress}
        if seen.wait is not None:
            found.update(wait=seen.wait.outcome, contended=seen.wait.contended)
        if seen.hold is not None:
            found.update(hold=seen.hold.outcome)
        for field, event in (("waited_ms", seen.wait), ("held_ms", seen.hold)):
            if field in expected:
                assert expected[field] <= event.seconds * 1000, event
                assert event.seconds <= time.monotonic() - self.began, event
        assert all(found[key] == value for key, value in expected.items() if key in found), found

    def finish(self, step):
        if self.thread.ident is not None:
            self.thread.join(PATIENCE)
        assert step.get("says", "") in str(self.error), f"{step}: {self.error}"
        assert "within_ms" not in step or self.took * 1000 < step["within_ms"], f"{step}: {self.took} s"
        return self.outcome


def write(guard, path):
    """Makes a znode, or sets it where there is one."""
    try:
        try:
            guard.create(path, b"1")
        except Refused as refused:
            assert refused.status == 409, refused
            guard.set(path, b"2")
        return "written"
    except Stale:
        return "stale"


def run(urls, scenario, prefix):
    attempts = {}
    fences = {}

    def expect(step, found):
        if found != step["expect"]:
            raise AssertionError(f"{scenario['name']}: {step}: {found}")

    for step in scenario["steps"]:
        do, one = step["do"], attempts.get(step.get("as"))
        if do in ("acquire", "start"):
            client = attempts[step["client"]].client if "client" in step else None
            one = attempts[step["as"]] = Attempt(urls, prefix, step, client)
            if do == "acquire":
                expect(step, one.finish(step))
        elif do == "finish":
            expect(step, one.finish(step))
        elif do == "waiting":
            assert one.waits.wait(PATIENCE), f"{scenario['name']}: {step}: {one.outcome}"
        elif do == "pending":
            assert one.outcome is None, f"{scenario['name']}: {step}: {one.outcome}"
        elif do == "abort":
            one.aborted = True
            one.lock.abort()
        elif do == "verify":
            _, answer = one.client._transport.call(
                "POST", f"{one.lock._path}/verify", {"token": str(one.guard.token)}, float("inf"))
            expect(step, answer["held"])
        elif do == "release":
            expect(step, one.guard.release())
        elif do == "post":
            one.guard.release_later()
        elif do == "silence":
            one.guard.silence()
        elif do == "lost":
            assert one.guard.wait_lost(PATIENCE) and one.guard.lost, f"{scenario['name']}: {step}"
        elif do == "pause":
            time.sleep(step["ms"] / 1000 if "ms" in step else step["leases"] * TTL)
        elif do == "observed":
            one.check(step["observed"])
        elif do == "fence":
            token = int(step["token"]) if "token" in step else one.guard.token
            expect(step, fences.setdefault(step["resource"], Fence()).check(token))
        elif do == "write":
            expect(step, write(one.guard, f"/{prefix.replace('/', '-')}"))
        elif do == "ask":
            within = step["within_ms"] / 1000 if "within_ms" in step else None
            asked = Rowlock(urls).ask(f"{prefix}/{step['lock']}", step["reason"], within=within)
            expect(step, asked)
        elif do == "asked":
            question = asyncio.run(asyncio.wait_for(one.guard.until_asked(), PATIENCE))
            assert question.token == one.guard.token, question
            expect(step, question.reason)
        elif do == "unasked":
            assert one.guard.asked() is None, f"{scenario['name']}: {step}: {one.guard.asked()}"
        elif do == "tokens_rise":
            tokens = [attempts[name].guard.token for name in step["of"]]
            assert tokens == sorted(set(tokens)), f"{scenario['name']}: {tokens}"
        else:
            raise AssertionError(f"unknown step {do}: this runner is older than the scenarios")


async def a_cancelled_task_gives_its_place_back(urls, prefix):
    name = f"{prefix}/async"
    client = AsyncRowlock(urls, ttl=TTL)
    async with client.lock(name, 5) as guard:
        waits = asyncio.Event()
        loop = asyncio.get_running_loop()
        lock = client.lock(name, on_waiting=lambda _: loop.call_soon_threadsafe(waits.set))
        task = asyncio.create_task(lock.acquire())
        await asyncio.wait_for(waits.wait(), PATIENCE)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled() and not guard.lost
    async with client.lock(name, 5) as second:
        assert second.token > guard.token


def main():
    urls = sys.argv[1].split(",")
    document = json.loads(SCENARIOS.read_text())
    assert document["version"] == VERSION, "the scenarios are of another version"
    prefix = f"conformance/{uuid.uuid4().hex[:8]}"
    for scenario in document["scenarios"]:
        if GATEWAY is None and any("through" in step or "before" in step for step in scenario["steps"]):
            print("left out", scenario["name"])
            continue
        run(urls, scenario, prefix)
        print("ok", scenario["name"], flush=True)
    asyncio.run(a_cancelled_task_gives_its_place_back(urls, prefix))
    os.environ["ROWLOCK_API"] = sys.argv[1]
    text = (HERE.parent / "README.md").read_text()
    for example in text.split("```python\n")[1:4]:
        exec(example.split("```")[0], {})
    print(f"{len(document['scenarios'])} scenarios")


if __name__ == "__main__":
    main()
