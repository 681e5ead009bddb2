"""A service that stores what is PUT, behind `FenceWSGI`: service.py fenced|plain LOCK. Says its URL."""

import sys
from wsgiref.simple_server import WSGIRequestHandler, make_server

from rowlock import FenceWSGI

stored = b""


def app(environ, start_response):
    global stored
    if environ["REQUEST_METHOD"] == "PUT":
        stored = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
    start_response("200 OK", [("Content-Length", str(len(stored)))])
    return [stored]


class Quiet(WSGIRequestHandler):
    def log_message(self, *_):
        pass


if __name__ == "__main__":
    service = FenceWSGI(app, [sys.argv[2]]) if sys.argv[1] == "fenced" else app
    server = make_server("127.0.0.1", 0, service, handler_class=Quiet)
    print(f"http://127.0.0.1:{server.server_port}/", flush=True)
    server.serve_forever()
