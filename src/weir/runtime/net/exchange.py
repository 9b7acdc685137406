"""The real Transport of one task: its channels to itself and to all other tasks.

Comes in: the plan, and the addresses of the other tasks once all are up. Goes
out: channels, and the failure of a peer. One connection per pair of tasks carries
all their channels both ways; of the two, the lower index connects. What is in
flight is bounded by credit: capacity times channels.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from weir.errors import ProtocolViolation, TaskLost, WeirError
from weir.graph.plan import Plan
from weir.ids import AttemptId, ChannelId, TaskIndex
from weir.runtime.net.channels import LocalChannel, RemoteIn, RemoteOut
from weir.runtime.net.connection import LEAVE_TIMEOUT_S, Connection, Frame
from weir.runtime.net.flight import FrameServer, Handlers, Refused, connect
from weir.runtime.net.lines import Lines, Role
from weir.runtime.net.wire_format import CREDIT, ElementCodec, decode_credit, frame_kind_and_channel
from weir.runtime.ports import InChannel, OutChannel


class TaskTransport:
    """The channels of one task. Listens from the start; `wake` is called, by any thread, when the loop should look.

    host:  where to listen; other tasks must be able to reach it.
    lines: with the job's secret; streams without it, and streams of another attempt, are refused.
    """

    def __init__(
        self,
        plan: Plan,
        task: TaskIndex,
        attempt: AttemptId,
        *,
        lines: Lines,
        host: str,
        capacity: int,
        wake: Callable[[], None],
    ) -> None:
        self._task = task
        self._attempt = attempt
        self._lines = lines
        self._wake = wake
        self._failure: WeirError | None = None
        self._closed = False
        self._peers: dict[int, _Peer] = {}
        self._outs: dict[ChannelId, LocalChannel | RemoteOut] = {}
        self._ins: dict[ChannelId, LocalChannel | RemoteIn] = {}
        self._lay_channels(plan, capacity)
        self._server = FrameServer(host, lines, self._accept)
        self.address: str = self._server.address

    def connect(self, addresses: Sequence[str]) -> None:
        """Open the streams to the tasks above this one; those below connect by themselves. `addresses` by task."""
        for index, peer in self._peers.items():
            if index > self._task:
                hello = {"attempt": self._attempt, "from": self._task, "to": index}
                peer.attach(
                    connect(addresses[index], self._lines, hello, to=Role.TASK, on_frame=peer.take, on_close=peer.lost)
                )

    def out(self, channel: ChannelId) -> OutChannel:
        return self._outs[channel]

    def into(self, channel: ChannelId) -> InChannel:
        return self._ins[channel]

    @property
    def failure(self) -> WeirError | None:
        """Why the channels are of no use any more: a peer that went away without a goodbye, or a broken frame."""
        return self._failure

    def bytes_out(self, channel: ChannelId) -> int:
        return self._outs[channel].bytes_out

    def bytes_in(self, channel: ChannelId) -> int:
        return self._ins[channel].bytes_in

    def close(self, timeout_s: float = LEAVE_TIMEOUT_S) -> None:
        """Leave all peers and stop listening. What was not received yet may be lost."""
        self._closed = True
        for peer in self._peers.values():
            peer.leave()
        deadline_s = time.monotonic() + timeout_s
        for peer in self._peers.values():
            peer.close(max(0.05, deadline_s - time.monotonic()))
        self._server.close(timeout_s)

    def _lay_channels(self, plan: Plan, capacity: int) -> None:
        codecs = [ElementCodec(edge.schema) for edge in plan.edges]
        for number, channel in enumerate(plan.channels):
            codec = codecs[channel.edge]
            if channel.source == channel.target == self._task:
                self._outs[channel] = self._ins[channel] = LocalChannel(capacity)
            elif channel.source == self._task:
                peer = self._peer(channel.target)
                out = RemoteOut(number, codec, capacity=capacity, send=peer.send)
                self._outs[channel] = peer.outs[number] = out
            elif channel.target == self._task:
                peer = self._peer(channel.source)
                into = RemoteIn(number, codec, capacity=capacity, send=peer.send)
                self._ins[channel] = peer.ins[number] = into

    def _peer(self, index: int) -> _Peer:
        if index not in self._peers:
            self._peers[index] = _Peer(index, wake=self._wake, fail=self._fail)
        return self._peers[index]

    def _accept(self, hello: Mapping[str, Any], connection: Connection) -> Handlers:
        if hello["attempt"] != self._attempt:
            raise Refused(f"attempt {hello['attempt']} calls, but this is attempt {self._attempt}")
        peer = self._peers.get(hello["from"])
        if peer is None or peer.index > self._task or hello["to"] != self._task:
            raise Refused(f"task {hello['from']} calls task {hello['to']}, but this is task {self._task}")
        if not peer.attach(connection):
            raise Refused(f"task {peer.index} is connected already")
        return Handlers(on_frame=peer.take, on_close=peer.lost)

    def _fail(self, error: WeirError) -> None:
        if self._failure is None and not self._closed:
            self._failure = error
        self._wake()


class _Peer:
    """All channels to and from one other task, and the connection that carries them."""

    def __init__(self, index: int, *, wake: Callable[[], None], fail: Callable[[WeirError], None]) -> None:
        self.index = index
        self.outs: dict[int, RemoteOut] = {}
        self.ins: dict[int, RemoteIn] = {}
        self._wake = wake
        self._fail = fail
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._early: list[Frame] = []

    def send(self, frame: Frame) -> None:
        """Send, or keep until the peer has connected: no more than the credits of its channels."""
        connection = self._connection
        if connection is None:
            with self._lock:
                connection = self._connection
                if connection is None:
                    self._early.append(frame)
                    return
        connection.send(frame)

    def attach(self, connection: Connection) -> bool:
        """Use this connection; False when there is one already."""
        with self._lock:
            if self._connection is not None:
                return False
            for frame in self._early:
                connection.send(frame)
            self._early.clear()
            self._connection = connection
            return True

    def take(self, frame: pa.Buffer) -> None:
        """A frame from the peer; called by the connection's thread."""
        kind, number = frame_kind_and_channel(frame)
        try:
            if kind == CREDIT:
                self.outs[number].grant(decode_credit(frame))
            else:
                self.ins[number].arrived(frame)
        except (KeyError, ProtocolViolation) as error:
            self._fail(ProtocolViolation(f"task {self.index} sent a frame that fits no channel: {error!r}"))
            raise
        self._wake()

    def lost(self, reason: str | None) -> None:
        if reason is not None:
            self._fail(TaskLost(f"task {self.index} is gone: {reason}"))

    def leave(self) -> None:
        if self._connection is not None:
            self._connection.leave()

    def close(self, timeout_s: float) -> None:
        if self._connection is not None:
            self._connection.close(timeout_s)
