"""One duplex connection: whole frames both ways, in order, whatever carries them.

Comes in: a way to write a frame and a way to read one (flight.py gives those of
Arrow Flight). Goes out: `send`, which never waits for the peer, and callbacks for
what arrives and for the end. Never looks into a frame beyond its first byte.

Why a writing thread: gRPC blocks a writer once its window and the socket are full
(about 4 MB on one machine), for as long as the peer does not read, and even a
cancelled call stays blocked until the socket is gone. So large frames, and all
frames while more than a little is unacknowledged, are handed to a thread; a small
frame that must find room in the window is written by the caller itself, which
saves a change of threads where latency counts.

Why pings: TCP says nothing about a peer whose host or network has gone, and gRPC's own
keepalive is not to be had (Flight's server takes no such option, and drops a client that
pings an idle line). So each end says at intervals what it has received. An end that hears
nothing for a while, or hears that nothing of its own arrives, gives the connection up:
either direction alone is enough to notice that it is lost.
"""

from __future__ import annotations

import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

import pyarrow as pa

from weir.runtime.net.pulse import PULSE

Frame: TypeAlias = "bytes | pa.Buffer"

APPLICATION_KIND_MIN = 16
"""A frame's first byte is its kind. Those below belong to this file."""

_WELCOME, _ACKNOWLEDGE, _GOODBYE = 1, 2, 3
_ACKNOWLEDGEMENT = struct.Struct("<BQ")
_WELCOMING = struct.Struct("<BH")

DIRECT_BYTES_MAX = 64 << 10
"""Unacknowledged bytes up to which the caller writes itself: the least window that gRPC opens."""

ACKNOWLEDGE_BYTES = 32 << 10
ACKNOWLEDGE_INTERVAL_S = 0.002
"""What has arrived is acknowledged after so many bytes, but not more often than this."""

LEAVE_TIMEOUT_S = 2.0
"""How long a close waits for the other side before the socket is cut."""


class Connection:
    """One end of a duplex connection. `send`, `leave` and `close` may be called from any thread.

    `on_close` is called exactly once, by the reading thread, with None after a goodbye of either
    side, and with a reason when the peer went away without one.
    """

    def __init__(
        self,
        name: str,
        *,
        write: Callable[[pa.Buffer], None],
        cut: Callable[[], object],
        frames_max: int | None = None,
        ping_interval_s: float = 1.0,
        timeout_s: float = 10.0,
    ) -> None:
        self.name = name
        self._write = write
        self._cut = cut
        self._frames_max = frames_max
        self._silence = _Silence(ping_interval_s, timeout_s)
        self._changed = threading.Condition(threading.Lock())
        self._outbox: deque[Frame] = deque()
        self._writing = False
        self._leaving = False
        self._over = False
        self._orderly = False
        self._reason: str | None = None
        self.parted = False
        """The peer has said goodbye: no frame of its will come any more."""
        self._sent_bytes = 0
        self._acknowledged_bytes = 0
        self._received_bytes = 0
        self._acknowledgement_bytes = 0
        self._acknowledgement_s = 0.0
        self.welcomed = threading.Event()
        self.own_port: int | None = None
        """The port of this end, as the peer that welcomed it sees it; behind a proxy that is another one."""
        self.ended = threading.Event()
        self._writer = threading.Thread(target=self._write_all, name=f"weir-write-{name}", daemon=True)
        self._writer.start()

    # --- sending ------------------------------------------------------------------------------------

    def send(self, frame: Frame) -> None:
        """Send a frame after all earlier ones. Never waits for the peer; after the end, does nothing."""
        with self._changed:
            if self._leaving or self._over:
                return
            direct = (
                not self._outbox
                and not self._writing
                and self._sent_bytes + len(frame) - self._acknowledged_bytes <= DIRECT_BYTES_MAX
            )
            if direct:
                self._writing = True
            else:
                self._outbox.append(frame)
                if self._frames_max is None or len(self._outbox) <= self._frames_max:
                    self._changed.notify_all()
                    return
        if direct:
            self._write_one(frame)
        else:
            self._abort(f"the peer has not read for {self._frames_max} messages")

    def leave(self) -> None:
        """Say goodbye after everything that was sent. Does not wait."""
        with self._changed:
            if not self._leaving and not self._over:
                self._leaving = True
                self._orderly = True
                self._outbox.append(bytes([_GOODBYE]))
                self._changed.notify_all()

    def close(self, timeout_s: float = LEAVE_TIMEOUT_S) -> None:
        """Leave and wait for the end; a peer that does not answer in time is cut off. Not for callbacks."""
        self.leave()
        if not self.ended.wait(timeout_s):
            self._cut()
            self.ended.wait(timeout_s)

    def _write_all(self) -> None:
        """The writing thread: take frames from the outbox until the goodbye is out or the stream is over."""
        while True:
            with self._changed:
                while not self._over and (self._writing or not (self._outbox or self._leaving)):
                    self._changed.wait()
                if self._over:
                    return
                if not self._outbox:
                    return
                frame = self._outbox.popleft()
                self._writing = True
            self._write_one(frame)
            del frame  # must not stay in memory until the next one comes

    def _write_one(self, frame: Frame) -> None:
        """Write to the stream, which `_writing` gives to this thread alone."""
        reason = None
        try:
            self._write(pa.py_buffer(frame))
        except Exception as error:
            reason = describe(error)
        with self._changed:
            self._writing = False
            self._sent_bytes += len(frame)
            self._changed.notify_all()
        if reason is not None and not self._over:
            self._abort(reason)

    def _abort(self, reason: str) -> None:
        with self._changed:
            self._reason = self._reason or reason
            self._leaving = True
            self._outbox.clear()
            self._changed.notify_all()
        self._cut()

    def _beat(self) -> None:
        """Called by the pulse: say what has been received so far, and look whether the peer did."""
        with self._changed:
            if self._over:
                return
            if not self._leaving and not (self._outbox and self._outbox[0][0] == _ACKNOWLEDGE):
                # Before all that waits: on a slow line that may take longer than the peer's patience. By the writing
                # thread, whatever the size: this one must not wait.
                self._outbox.appendleft(_ACKNOWLEDGEMENT.pack(_ACKNOWLEDGE, self._received_bytes))
                self._changed.notify_all()
            reason = self._silence.noticed(time.monotonic(), self._received_bytes, self._acknowledged_bytes)
        if reason is not None:
            self._abort(reason)

    # --- receiving ----------------------------------------------------------------------------------

    def welcome(self, port: int) -> None:
        """Tell the peer that it was accepted, and from which port it came: Flight does not tell it that."""
        self.send(_WELCOMING.pack(_WELCOME, port))

    def run(
        self,
        read: Callable[[], pa.Buffer | None],
        *,
        on_frame: Callable[[pa.Buffer], None],
        on_close: Callable[[str | None], None],
    ) -> None:
        """Read until the stream ends. When this returns, nothing touches the stream any more."""
        reason: str | None = "the connection ended without a goodbye"
        PULSE.join(self._beat, self._silence.interval_s)
        try:
            while (frame := read()) is not None:
                self._take(frame, on_frame)
                del frame
            if self.parted:
                self._writer.join()  # the peer still reads: it gets all that was sent before, and our goodbye
        except Exception as error:
            reason = describe(error)
        PULSE.leave(self._beat)
        with self._changed:
            self._over = True
            self._outbox.clear()
            self._changed.notify_all()
            while self._writing:
                self._changed.wait()
            reason = None if self._orderly else self._reason or reason
        self._writer.join()
        try:
            on_close(reason)
        finally:
            self.ended.set()

    def _take(self, frame: pa.Buffer, on_frame: Callable[[pa.Buffer], None]) -> None:
        kind = frame[0]
        if kind >= APPLICATION_KIND_MIN:
            on_frame(frame)
        elif kind == _ACKNOWLEDGE:
            self._acknowledged_bytes = _ACKNOWLEDGEMENT.unpack_from(frame)[1]
        elif kind == _WELCOME:
            self.own_port = _WELCOMING.unpack_from(frame)[1]
            self.welcomed.set()
        elif kind == _GOODBYE:
            self.parted = True
            self.leave()
        self._received_bytes += len(frame)
        if self._received_bytes - self._acknowledgement_bytes >= ACKNOWLEDGE_BYTES:
            now_s = time.monotonic()
            if now_s - self._acknowledgement_s >= ACKNOWLEDGE_INTERVAL_S:
                self._acknowledgement_s = now_s
                self._acknowledgement_bytes = self._received_bytes
                self.send(_ACKNOWLEDGEMENT.pack(_ACKNOWLEDGE, self._received_bytes))


class _Silence:
    """How long nothing has come from the peer, and nothing has arrived there.

    A process that did not run itself, because it was frozen or its machine slept, has not heard anything either, but
    that says nothing about the peer: of the time between two looks, no more than two intervals count.
    """

    def __init__(self, interval_s: float, timeout_s: float) -> None:
        self.interval_s = interval_s
        self._timeout_s = timeout_s
        self._looked_s: float | None = None
        self._received_bytes = self._acknowledged_bytes = -1
        self._unheard_s = self._unanswered_s = 0.0

    def noticed(self, now_s: float, received_bytes: int, acknowledged_bytes: int) -> str | None:
        """Why the connection is over, if it is."""
        passed_s = 0.0 if self._looked_s is None else min(now_s - self._looked_s, 2 * self.interval_s)
        self._looked_s = now_s
        self._unheard_s = self._unheard_s + passed_s if received_bytes == self._received_bytes else 0.0
        self._unanswered_s = self._unanswered_s + passed_s if acknowledged_bytes == self._acknowledged_bytes else 0.0
        self._received_bytes, self._acknowledged_bytes = received_bytes, acknowledged_bytes
        if self._unheard_s >= self._timeout_s:
            return f"nothing was heard from the peer for {self._unheard_s:.1f} s"
        if self._unanswered_s >= self._timeout_s:
            return f"nothing has reached the peer for {self._unanswered_s:.1f} s"
        return None


def describe(error: BaseException) -> str:
    """An error of the transport in one line, without the transport's own debugging context."""
    text = str(error).split(". gRPC client debug context")[0].split(", with message: ")[-1]
    return text.strip() or type(error).__name__
