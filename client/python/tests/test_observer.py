"""What an observer gets: the length of waits and holds, and how they ended."""

import asyncio
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from nodes import RELIABLE, SHORT, Story, async_client, but, client, held, works  # noqa: E402
from rowlock import Busy, LeaseOver, Observer, Refused, TimedOut  # noqa: E402
from rowlock.observer import NAMES_MAX, Hold, Wait  # noqa: E402
from rowlock.otel import OtelObserver  # noqa: E402
from rowlock.transport import now  # noqa: E402


class Seen(Observer):
    """Keeps everything."""

    def __init__(self):
        self.waits, self.holds, self.in_progress, self.names = [], [], 0, []

    def waiting(self, name, lock):
        self.in_progress += 1
        self.names.append(name)

    def waited(self, wait):
        self.in_progress -= 1
        self.waits.append(wait)

    def held(self, hold):
        self.holds.append(hold)


def waiting(position=2):
    return 202, {"state": "waiting", "position": position}


class Tests(Story):
    def test_a_wait_ends_at_the_grant_and_a_hold_at_the_release(self):
        def script(path, body):
            if path.endswith("/acquire"):
                time.sleep(0.5)
                return held(contended=True)
            return works(path, body)

        seen, began = Seen(), now()
        guard = client(self.node(script), observer=seen).lock("a/1", metrics_name="a").acquire()
        granted = now()
        self.assertEqual((seen.in_progress, seen.holds), (0, []))
        time.sleep(0.4)
        released = now()
        guard.release()
        ended, [wait], [hold] = now(), seen.waits, seen.holds
        self.assertEqual((wait.name, wait.lock, wait.contended, wait.outcome), ("a", "a/1", True, "granted"))
        self.assertTrue(0.5 <= wait.seconds <= granted - began, wait)
        self.assertEqual((hold.name, hold.lock, hold.outcome), ("a", "a/1", "released"))
        self.assertTrue(hold.seconds >= released - granted, hold)
        self.assertTrue(wait.seconds + hold.seconds <= ended - began, "the wait and the hold share no moment")

    def test_a_position_in_the_queue_is_contention_and_a_grant_at_once_is_none(self):
        answers = [waiting(), waiting(), held(), held()]
        node = self.node(lambda path, body: answers.pop(0) if path.endswith("/acquire") else works(path, body))
        seen = Seen()
        for _ in range(2):
            with client(node, observer=seen).lock("a"):
                self.assertEqual(seen.in_progress, 0)
        self.assertEqual([(wait.name, wait.contended) for wait in seen.waits], [("default", True), ("default", False)])

    def test_each_acquire_has_one_outcome_and_leaves_the_waiting(self):
        class Stopped(Exception):
            pass

        def stops(_position):
            raise Stopped

        seen, holder = Seen(), {"token": "1", "place": "p", "since_ms": 0}
        for answer, options, error in (
            ((200, {"state": "busy", "holder": holder}), {"timeout": 0}, Busy),
            (waiting(), {"timeout": 3}, TimedOut),
            ((404, {}), {}, LeaseOver),
            ((422, {"title": "no"}), {}, Refused),
            (waiting(), {"on_waiting": stops}, Stopped),
        ):
            def script(path, body, answer=answer):
                time.sleep(0.1)
                return but("/acquire", answer)(path, body)

            with self.assertRaises(error):
                client(self.node(script), observer=seen).lock("a", **options).acquire()
        lock = client(self.node(but("/acquire", waiting())), observer=seen).lock("a", on_waiting=lambda _: lock.abort())
        with self.assertRaises(LeaseOver):
            lock.acquire()
        self.assertEqual([(wait.outcome, wait.contended) for wait in seen.waits], [
            ("busy", True), ("timed_out", True), ("lost", False), ("refused", False), ("failed", True),
            ("canceled", True)])
        self.assertTrue(3 <= seen.waits[1].seconds < 9, seen.waits[1])
        self.assertEqual((seen.in_progress, seen.holds), (0, []))

    def test_a_coroutine_is_measured_and_a_canceled_one_has_no_hold(self):
        seen = Seen()

        async def waits(node):
            cluster = async_client(node)
            cluster._client._observer = seen
            async with cluster.lock("a"):
                await asyncio.sleep(0.2)

        async def is_canceled():
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(waits(self.node(but("/acquire", waiting()))), 0.3)

        asyncio.run(waits(self.node(works)))
        [hold] = seen.holds
        self.assertTrue(0.2 <= hold.seconds < 5 and hold.outcome == "released", hold)
        asyncio.run(is_canceled())
        self.wait_for("the end of the wait", lambda: len(seen.waits) == 2)
        self.assertEqual((seen.waits[1].outcome, seen.in_progress, len(seen.holds)), ("canceled", 0, 1))

    def test_a_lost_hold_ends_at_the_deadline_also_when_the_program_notices_it_late(self):
        seen, node = Seen(), self.node(lambda path, body: works(path, body, SHORT))
        kept, by_hand = (client(node, observer=seen).lock("a", keep_alive=keeps).acquire() for keeps in (True, False))
        began = now()
        kept.silence()
        # Past the deadline; nothing has looked at the second one.
        self.wait_for("the loss", lambda: len(seen.holds) == 1 and now() > began + SHORT)
        time.sleep(1)
        self.assertTrue(by_hand.lost)
        by_hand.release()
        self.assertEqual([hold.outcome for hold in seen.holds], ["lost", "lost"])
        for hold in seen.holds:
            self.assertTrue(RELIABLE * SHORT - 3 < hold.seconds <= RELIABLE * SHORT, hold)

    def test_names_beyond_the_bound_count_as_one(self):
        seen = Seen()
        cluster = client(self.node(works), observer=seen)
        for at in range(NAMES_MAX + 2):
            with cluster.lock("a", metrics_name=f"job-{at}"):
                pass
        with cluster.lock("a", metrics_name="job-0"):
            pass
        with cluster.lock("a"):
            pass
        self.assertEqual(seen.names[NAMES_MAX - 1:], [f"job-{NAMES_MAX - 1}", "other", "other", "job-0", "default"])

    def test_an_observer_that_fails_takes_no_lock_away(self):
        class Fails(Observer):
            def waiting(self, name, lock):
                raise OSError(name)

            waited = held = lambda self, event: 1 // 0

        with self.assertLogs("rowlock", "ERROR") as logs:
            with client(self.node(works), observer=Fails()).lock("a") as guard:
                self.assertFalse(guard.lost)
            self.assertTrue(guard.lost)
        self.assertEqual(len(logs.records), 3)

    def test_opentelemetry_gets_metrics_with_few_attributes_and_a_span_with_the_lock(self):
        meter, tracer = Meter(), Tracer()
        observer = OtelObserver(meter, tracer)
        observer.waiting("job", "job/1")
        observer.waited(Wait("job", "job/1", True, "granted", 2.5))
        observer.held(Hold("job", "job/1", "lost", 0.5))
        name, ended = {"rowlock.lock.name": "job"}, time.time_ns()
        outcome = {**name, "rowlock.lock.contended": True, "rowlock.lock.outcome": "granted"}
        self.assertEqual(meter.seen, [
            ("rowlock.client.lock.waiting", "{acquire}", 1, name),
            ("rowlock.client.lock.waiting", "{acquire}", -1, name),
            ("rowlock.client.lock.wait", "s", 2.5, outcome),
            ("rowlock.client.lock.hold", "s", 0.5, {**name, "rowlock.lock.outcome": "lost"}),
        ])
        [(span, attributes, start, end)] = tracer.seen
        self.assertEqual((span, attributes), ("rowlock.acquire", {**outcome, "rowlock.lock.path": "job/1"}))
        self.assertEqual(end - start, 2_500_000_000)
        self.assertLess(abs(ended - end), 5e9)


class Meter:
    def __init__(self):
        self.seen = []

    def create_histogram(self, name, unit, description, **_boundaries):
        return Instrument(self.seen, name, unit)

    create_up_down_counter = create_histogram


class Instrument:
    def __init__(self, seen, *what):
        self.seen, self.what = seen, what

    def record(self, value, attributes):
        self.seen.append((*self.what, value, attributes))

    add = record


class Tracer:
    def __init__(self):
        self.seen = []

    def start_span(self, name, start_time, attributes):
        return Span(lambda end: self.seen.append((name, attributes, start_time, end)))


class Span:
    def __init__(self, end):
        self.end = end
