"""A read/write lock for kazoo, in one queue with all other clients. Needs kazoo 2.7.1 or later.

kazoo's own locks wait only for znodes whose names they know. This one keeps to the queue's rule of a Rowlock
cluster: every child that ends in a number stands in the queue, in the order of the numbers, and nobody is granted
the lock before somebody who came earlier.
"""

from typing import Any, Iterable, Optional

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.recipe.lock import ForceRetryError, Lock
from kazoo.version import __version__ as _KAZOO

# Without it `Lock` would go on by its own rule, and wait for other znodes than `SharedLock` means.
if not hasattr(Lock, "_get_predecessor"):
    raise ImportError(f"rowlock.kazoo needs kazoo 2.7.1 or later, and this is {_KAZOO}: pip install -U kazoo")

# How names say that their owner shares the lock: Curator's, and kazoo's.
READERS = ("__READ__", "__rlock__")
# (shared, exclusive), by the library whose locks are to wait for ours.
NAMES = {"curator": ("__READ__", "-lock-"), "kazoo": ("__rlock__", "__lock__")}
DIGITS = 10


def number_of(name: str) -> Optional[int]:
    """The place of a znode in the queue; None: it has none."""
    digits = name[-DIGITS:]
    return int(digits) if len(digits) == DIGITS and digits.isascii() and digits.isdigit() else None


def last_before(children: Iterable[str], own: str, shared: bool) -> Optional[str]:
    """The last one of those that `own` has to wait for; None: it holds the lock.

    A reader waits for all before it that are no readers, everybody else for all before it.
    """
    place = number_of(own)
    assert place is not None, "a sequential znode ends in its number"
    before = [
        (number, child)
        for child in children
        for number in [number_of(child)]
        if number is not None and number < place
        and not (shared and any(reader in child for reader in READERS))
    ]
    return max(before)[1] if before else None


class SharedLock(Lock):  # type: ignore[misc]
    """A lock that `shared` ones hold together, and others alone: `with SharedLock(zk, "/locks/x", shared=True)`.

    `names` says how the place in the queue is named: "curator" as Curator, Rowlock and its clients do; "kazoo" if
    kazoo's own `Lock`, `ReadLock` or `WriteLock` are in the queue, which do not wait for other names. This lock
    waits for all of them in both cases.

    It is kazoo's `Lock` otherwise, and cannot be asked for twice. Its loss is that of kazoo's session: listen to
    the client's state, and stop at SUSPENDED.
    """

    _EXCLUDE_NAMES = ["-lock-", "__lock__", "__rlock__", "__READ__", "__WRIT__", "-lease-"]

    def __init__(
        self,
        client: KazooClient,
        path: str,
        identifier: Optional[str] = None,
        *,
        shared: bool = False,
        names: str = "curator",
    ) -> None:
        # The base makes the prefix of it.
        self._NODE_NAME = NAMES[names][0 if shared else 1]
        self._shared = shared
        super().__init__(client, path, identifier)

    @property
    def token(self) -> int:
        """The fencing token, which it asks for: give it to what you write to. Tokens of a lock rise."""
        stat = self.client.exists(f"{self.path}/{self.node}") if self.node else None
        if stat is None:
            raise NoNodeError(f"the place in the queue of {self.path} is gone")
        return int(stat.czxid)

    def _get_predecessor(self, node: str) -> Any:
        """kazoo's `Lock` watches what this returns, and holds the lock when it returns None."""
        children = self.client.get_children(self.path)
        if node not in children:
            # The session has ended in between: the base makes another place.
            raise ForceRetryError()
        return last_before(children, node, self._shared)
