"""What the tests of connections share: ends that remember what they saw."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from weir.runtime.net.connection import Connection
from weir.runtime.net.flight import FrameServer, Handlers, Refused, connect
from weir.runtime.net.lines import Lines, Secret

TOKEN = "a-secret-token"
LINES = Lines(Secret(TOKEN))
HOST = "127.0.0.1"


def frame(text: str) -> bytes:
    return b"\x20" + text.encode()


class End:
    """One end of a connection that remembers what it saw."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.closes: list[str | None] = []
        self.connection: Connection | None = None

    def on_frame(self, found: pa.Buffer) -> None:
        self.frames.append(found.to_pybytes())

    def on_close(self, reason: str | None) -> None:
        self.closes.append(reason)

    @property
    def texts(self) -> list[str]:
        return [found[1:].decode() for found in self.frames]


class Server(End):
    """A server that keeps its last connection."""

    def __init__(self, lines: Lines = LINES, **options: Any) -> None:
        super().__init__()
        self.hellos: list[Mapping[str, Any]] = []
        self.refusal: str | None = None
        self.server = FrameServer(HOST, lines, self.on_connect, **options)

    def on_connect(self, hello: Mapping[str, Any], connection: Connection) -> Handlers:
        self.hellos.append(hello)
        if self.refusal:
            raise Refused(self.refusal)
        self.connection = connection
        return Handlers(on_frame=self.on_frame, on_close=self.on_close)


def join(server: Server, end: End, lines: Lines = LINES, **options: Any) -> Connection:
    end.connection = connect(
        server.server.address, lines, {"who": 1}, on_frame=end.on_frame, on_close=end.on_close, **options
    )
    return end.connection


def weir_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("weir-")]
