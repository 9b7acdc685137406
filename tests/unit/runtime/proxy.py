"""A TCP proxy that can delay what passes, or swallow it: a network that loses everything, and says nothing."""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from urllib.parse import urlsplit

CHUNK_BYTES = 1 << 16
HOST = "127.0.0.1"


class Proxy:
    """Stands before one address. `swallow` makes a black hole of the connections that there are."""

    def __init__(self, address: str, *, delay_s: float = 0.0) -> None:
        place = urlsplit(address)
        self._target = (place.hostname, place.port)
        self.delay_s = delay_s
        self._pipes: list[_Pipe] = []
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server((HOST, 0))
        self.address = f"{place.scheme}://{HOST}:{self._listener.getsockname()[1]}"
        self.passed_bytes = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def swallow(self, *directions: str) -> None:
        """Lose "up", what goes towards the address, "down", what comes from it, or both."""
        for pipe in self._pipes:
            pipe.is_lost = pipe.is_lost or pipe.direction in (directions or ("up", "down"))

    def close(self) -> None:
        for each in (self._listener, *self._sockets):
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._target)
            self._sockets += [near, far]
            for source, target, direction in ((near, far, "up"), (far, near, "down")):
                self._pipes.append(_Pipe(self, source, target, direction))


class _Pipe:
    """One direction of one connection: a thread that reads, and one that writes what is due."""

    def __init__(self, proxy: Proxy, source: socket.socket, target: socket.socket, direction: str) -> None:
        self._proxy, self._source, self._target = proxy, source, target
        self.direction = direction
        self.is_lost = False
        self._waiting: deque[tuple[float, bytes]] = deque()
        self._changed = threading.Condition()
        for run in (self._read, self._write):
            threading.Thread(target=run, daemon=True).start()

    def _read(self) -> None:
        data = b"-"
        while data:
            try:
                data = self._source.recv(CHUNK_BYTES)
            except OSError:
                data = b""
            # A black hole says nothing of a connection's end either.
            if not self.is_lost:
                with self._changed:
                    self._waiting.append((time.monotonic() + self._proxy.delay_s, data))
                    self._changed.notify_all()

    def _write(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                due_s, data = self._waiting.popleft()
                self._changed.wait_for(lambda: False, max(0.0, due_s - time.monotonic()))
            if self.is_lost:
                continue
            try:
                self._target.sendall(data) if data else self._target.shutdown(socket.SHUT_WR)
            except OSError:
                return
            if not data:
                return
            self._proxy.passed_bytes += len(data)
