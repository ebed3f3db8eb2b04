"""An S3 server on loopback, which speaks the protocol over HTTP, and may spoil some answers."""

import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import BytesIO
from socket import SHUT_RDWR
from threading import Lock
from typing import Any

import boto3
from moto.server import ThreadedMotoServer
from werkzeug.test import run_wsgi_app
from werkzeug.wsgi import get_input_stream

BUCKET = "rebaser"
SPOILED = ("late", "twice", "cut", "lost", "500", "503")
"""Answers: after seconds; of the second of two equal requests; half of them, or none; and errors of
a server that has done what it was asked (500), and of one that has not (503)."""
_LATEST = 2.0  # seconds


class Spoiler:
    """An application between clients and S3, which spoils some answers."""

    def __init__(self, application: Callable[..., Iterable[bytes]], seed: object) -> None:
        self.share = 0.0
        """Share of the answers that are spoiled, from 0 to 1."""
        self.seen: Counter[str] = Counter()
        """Spoiled answers, by what was done to them."""
        self._application = application
        self._chance = random.Random(str(seed))
        self._lock = Lock()

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        with self._lock:
            is_spoiled = self._chance.random() < self.share
            how = self._chance.choice(SPOILED) if is_spoiled else "sound"
            late = self._chance.uniform(0, _LATEST)
            if is_spoiled:
                self.seen[how] += 1
        sent = get_input_stream(environ).read()
        if how == "503":
            return _error(start, "503 Slow Down", "SlowDown")
        if how == "late":
            time.sleep(late)
        if how == "twice":
            self._answer(environ, sent)
        body, status, headers = self._answer(environ, sent)
        if how == "500":
            return _error(start, "500 Internal Server Error", "InternalError")
        if how == "lost":
            environ["werkzeug.socket"].shutdown(SHUT_RDWR)  # else it stays open
            raise ConnectionResetError
        start(status, headers)
        return _half(body) if how == "cut" else [body]

    def _answer(self, environ: dict[str, Any], sent: bytes) -> tuple[bytes, str, Any]:
        own = {**environ, "wsgi.input": BytesIO(sent), "CONTENT_LENGTH": str(len(sent))}
        own.pop("HTTP_TRANSFER_ENCODING", None)
        # The server looks whether there is an object, and then writes it.
        with self._lock:
            parts, status, headers = run_wsgi_app(self._application, own, buffered=True)
        return b"".join(parts), status, headers.to_wsgi_list()


def _error(start: Callable[..., Any], status: str, code: str) -> list[bytes]:
    body = f"<Error><Code>{code}</Code><Message>spoiled</Message></Error>".encode()
    start(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
    return [body]


def _half(body: bytes) -> Iterator[bytes]:
    yield body[: len(body) // 2]
    raise ConnectionResetError


@contextmanager
def s3_running() -> Iterator[dict[str, str]]:
    """Yield what `REBASER_STORE__OPTIONS` is for a server with that bucket.

    The servers of one process share their buckets, which last as long as it does.
    """
    with _served() as (_, options):
        yield options


@contextmanager
def unreliable_s3_running(seed: object) -> Iterator[tuple[Spoiler, dict[str, str]]]:
    """Yield a spoiler of the server's answers, and the options as `s3_running` does.

    The answers are sound until the spoiler is told to spoil them.
    """
    with _served() as (server, options):
        assert server._server is not None
        spoiler = Spoiler(server._server.app, seed)
        server._server.app = spoiler
        yield spoiler, options


@contextmanager
def _served() -> Iterator[tuple[ThreadedMotoServer, dict[str, str]]]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    options = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }
    client = boto3.client(
        "s3",
        endpoint_url=options["AWS_ENDPOINT_URL"],
        aws_access_key_id="a",
        aws_secret_access_key="b",
        region_name="us-east-1",
    )
    client.create_bucket(Bucket=BUCKET)
    client.close()
    try:
        yield server, options
    finally:
        server.stop()
