"""Loaded by pytest beside kazoo's own tests: every client of theirs connects by TLS, with the files of ROWLOCK_TLS_*."""
import os

from kazoo.client import KazooClient
from kazoo.handlers import utils

PLAIN, CONNECT = KazooClient.__init__, utils.create_tcp_connection
FILES = {"ca": "ROWLOCK_TLS_CA", "certfile": "ROWLOCK_TLS_CERT", "keyfile": "ROWLOCK_TLS_KEY"}


def encrypted(self, *args, **kwargs):
    kwargs.setdefault("use_ssl", True)
    for option, name in FILES.items():
        kwargs.setdefault(option, os.environ[name])
    PLAIN(self, *args, **kwargs)


def connected(module, address, hostname=None, *args, **kwargs):
    # For four-letter words, kazoo 2.11 takes the port for the server's name.
    return CONNECT(module, address, address[0] if isinstance(hostname, int) else hostname, *args, **kwargs)


KazooClient.__init__, utils.create_tcp_connection = encrypted, connected
