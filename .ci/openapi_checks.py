"""What schemathesis asks and judges beyond its own checks (.ci/openapi).

Most of what it makes up is refused at the first field: nobody guesses the secret of a lease. So half of the requests
get a live lease, locks and znodes that others use too, and a token that was granted. Which half is a matter of their
content alone, so that a failure can be repeated.
"""

import atexit
import collections
import json
import os
import pathlib
import threading
import time
import urllib.error
import urllib.request
import zlib

import schemathesis

API, TOKEN = os.environ["ROWLOCK_API"], os.environ["ROWLOCK_TOKEN"]
LOCKS = ["a", "b/c", "d"]
# One part of an address.
NAMES = ["a", "b"]
ZNODES = ["a", "b", "b/c", "locks"]
LEASE_S = 5

guard = threading.Lock()
lease = {"made": 0.0}
tokens = collections.deque(["1"], maxlen=8)
answers = collections.Counter()


def live_lease():
    """One that lives while the request is under way; another one every few seconds, since some requests end it."""
    with guard:
        if time.monotonic() > lease["made"] + LEASE_S:
            head = {"Authorization": f"Bearer {TOKEN}"}
            request = urllib.request.Request(API + "/v1/leases", b'{"ttl_ms": 20000}', head, method="POST")
            # A busy machine may lose its leader for a moment.
            for left in range(20, -1, -1):
                try:
                    with urllib.request.urlopen(request, timeout=10) as answer:
                        lease.update(json.load(answer), made=time.monotonic())
                    break
                except urllib.error.HTTPError as refusal:
                    if refusal.code != 503 or left == 0:
                        raise
                    time.sleep(0.5)
        return dict(lease)


@schemathesis.hook
def before_call(ctx, case, kwargs):
    draw = zlib.crc32(repr((case.path_parameters, case.query, case.body)).encode())
    path, body, query = case.path_parameters, case.body, case.query
    for asked in (body, query):
        # Waits that are allowed become short ones: there is more to ask than how long a minute is.
        if isinstance(asked, dict) and type(asked.get("wait_ms")) is int and 50 < asked["wait_ms"] <= 60000:
            asked["wait_ms"] %= 50
    if draw & 1:
        return
    route, live = case.operation.path, live_lease()
    if path:
        names = LOCKS if route.startswith("/v1/locks/") else NAMES
        for field, values in (("name", names), ("path", ZNODES), ("lease", [live["lease"]]), ("token", list(tokens)), ("session", [live["lease"]])):
            if field in path:
                path[field] = values[draw // 2 % len(values)]
    if isinstance(body, dict):
        if "/locks/" in route and "verify" not in route or "/elections/" in route or "/leases/{lease}" in route:
            body.pop("ttl_ms", None)
            body["secret"] = live["secret"]
        for part in body.get("locks") or [] if isinstance(body.get("locks"), list) else []:
            if isinstance(part, dict):
                part["lock"] = LOCKS[draw // 2 % len(LOCKS)]
        if "token" in body and draw & 64:
            body["token"] = tokens[draw // 2 % len(tokens)]
        if route.startswith("/v1/terraform/"):
            body["ID"] = "ab"[draw // 2 % 2]
    if "/znodes/" in route and case.method in ("PUT", "POST", "DELETE") and draw & 2:
        case.headers["Rowlock-Lease"] = live["secret"]
    for header in ("If-Match", "If-None-Match"):
        if header in (case.headers or {}):
            case.headers[header] = ("*", '"0"', '"1"')[draw // 2 % 3]
    if isinstance(query, dict):
        if "session" in query:
            query["session"] = live["lease"]
        if "lock" in query:
            query["lock"] = "/locks/" + LOCKS[draw // 2 % len(LOCKS)]


@schemathesis.hook
def after_call(ctx, case, response):
    # Other methods than the documented ones are asked, too: they show nothing of this one.
    if case.method.upper() == case.operation.method.upper():
        answers[f"{case.method} {case.operation.path}", response.status_code] += 1
    if response.status_code == 200 and b'"token"' in response.content:
        token = response.json().get("token")
        if isinstance(token, str):
            tokens.append(token)


@schemathesis.check
def an_error_of_the_server_says_when_to_ask_again(ctx, response, case):
    passing = response.status_code == 503 and "retry-after" in response.headers
    # A node without a history says so.
    assert response.status_code < 500 or passing or response.status_code == 501, response.status_code


@schemathesis.check
def the_methods_that_a_path_takes_are_named(ctx, response, case):
    if response.status_code != 405:
        return
    route = case.operation.path
    said = {method.upper() for method in case.operation.schema[route]} & {"GET", "PUT", "POST", "DELETE"}
    # What OpenAPI cannot say: methods of its own, and that a lock may be named like a verb, so that it is read there.
    unsaid = {"LOCK", "UNLOCK"} if route.startswith("/v1/terraform/") else set()
    unsaid |= {"GET"} if route.startswith("/v1/locks/{name}/") else set()
    named = {method.strip() for line in response.headers["allow"] for method in line.split(",")} - {"HEAD"}
    assert said <= named <= said | unsaid, f"Allow says {sorted(named)}, the document {sorted(said)}"


@atexit.register
def tell():
    """How often each request got each status, also in earlier runs."""
    file = pathlib.Path(os.environ["ROWLOCK_ANSWERS"])
    for what, status in json.loads(file.read_text()) if file.exists() else []:
        answers[what, status] += 0
    file.write_text(json.dumps(sorted(answers)))
    requests = collections.defaultdict(list)
    for (what, status), count in sorted(answers.items()):
        requests[what].append(f"{status} {count} times")
    for what, counts in requests.items():
        print(f"{what}: {', '.join(counts)}")
    print(f"{sum(answers.values())} requests")
