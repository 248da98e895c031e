"""An HTTP proxy on loopback between a client and the S3 server that does what networks and stores do on bad days."""

from __future__ import annotations

import contextlib
import http.client
import socket
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal
from urllib.parse import urlsplit


@dataclass(slots=True)
class Trouble:
    """What befalls the next `times` requests of `method`, or of these every `every`-th."""

    kind: Literal["refuse", "reset", "lose_answer", "cut_body", "slow"]
    """An error answer in the server's stead; a reset before the server hears of it, or after; half a body; late."""
    method: str = "PUT"
    times: int = 1
    every: int = 1
    status: int = 503
    code: str = "SlowDown"
    delay_s: float = 0.0
    passed: int = 0
    """Requests of this method so far."""


@dataclass(slots=True)
class FlakyProxy:
    """Requests go through unchanged, signature included, but for the troubles."""

    target: str
    endpoint_url: str = ""
    troubles: list[Trouble] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    """`PUT 200`, `GET reset`, … in the order of arrival."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def next_trouble(self, method: str) -> Trouble | None:
        with self.lock:
            for trouble in self.troubles:
                if trouble.method == method and trouble.times > 0:
                    trouble.passed += 1
                    if trouble.passed % trouble.every == 0:
                        trouble.times -= 1
                        return trouble
        return None


@contextlib.contextmanager
def flaky_proxy(target: str) -> Iterator[FlakyProxy]:
    proxy = FlakyProxy(target)

    class Handler(_Handler):
        pass

    Handler.proxy = proxy
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        proxy.endpoint_url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield proxy
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    proxy: FlakyProxy
    protocol_version = "HTTP/1.1"

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        trouble = self.proxy.next_trouble(self.command)
        kind = trouble.kind if trouble else ""
        self.close_connection = True
        if trouble and kind == "slow":
            time.sleep(trouble.delay_s)
        if trouble and kind == "refuse":
            return self.refuse(trouble)
        if kind == "reset":
            return self.reset("reset")
        status, headers, answer = self.forward(body)
        if kind == "lose_answer":
            return self.reset(f"{status} lost")
        self.answer(status, headers, answer, half=kind == "cut_body")

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = handle_any

    def forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        to = urlsplit(self.proxy.target)
        connection = http.client.HTTPConnection(str(to.hostname), to.port, timeout=60)
        with contextlib.closing(connection):
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in ("expect", "connection"):
                    connection.putheader(name, value)
            connection.endheaders(body)
            response = connection.getresponse()
            return response.status, response.getheaders(), response.read()

    def answer(self, status: int, headers: list[tuple[str, str]], body: bytes, half: bool) -> None:
        self.note(f"{status} cut" if half else f"{status}")
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("connection", "transfer-encoding"):
                self.send_header(name, value)
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if half else body)

    def refuse(self, trouble: Trouble) -> None:
        self.note(f"{trouble.status} {trouble.code}")
        body = f"<Error><Code>{trouble.code}</Code><Message>on purpose</Message></Error>".encode()
        self.send_response(trouble.status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def reset(self, note: str) -> None:
        self.note(note)
        # Lingering for zero seconds makes close() send RST.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def note(self, what: str) -> None:
        with self.proxy.lock:
            self.proxy.seen.append(f"{self.command} {what}")

    def log_message(self, format: str, *args: Any) -> None:
        pass
