"""A holder of a lock: holder.py API LOCK RESOURCE fenced|plain ADDRESS BODY.

It looks whether it holds the lock, says so, and writes after the next line of its input. If it is stopped in
between, it writes late. The last line that it says is `written`, or `refused: ` with the error.
"""

import sys

from resources import RESOURCES, Refusal
from rowlock import Rowlock

api, lock, name, mode, address, body = sys.argv[1:]
with Rowlock(api.split(","), ttl=3).lock(lock, timeout=60) as guard:
    resource = RESOURCES[name](address)
    assert not guard.lost
    print("held", guard.token, flush=True)
    sys.stdin.readline()
    try:
        resource.write(guard if mode == "fenced" else None, body)
        print("written", flush=True)
    except Refusal as refusal:
        print(f"refused: {refusal}", flush=True)
