"""Loaded by pytest beside kazoo's own tests: every client of theirs connects by TLS, with the files of ROWLOCK_TLS_*."""
import os

from kazoo.client import KazooClient

PLAIN = KazooClient.__init__
FILES = {"ca": "ROWLOCK_TLS_CA", "certfile": "ROWLOCK_TLS_CERT", "keyfile": "ROWLOCK_TLS_KEY"}


def encrypted(self, *args, **kwargs):
    kwargs.setdefault("use_ssl", True)
    for option, name in FILES.items():
        kwargs.setdefault(option, os.environ[name])
    PLAIN(self, *args, **kwargs)


KazooClient.__init__ = encrypted
# kazoo 2.11 asks for it by a four-letter word, and takes the port for the server's name in TLS.
KazooClient.server_version = lambda self, retries=3: tuple(map(int, os.environ["ZOOKEEPER_VERSION"].split(".")))
