"""Two streams that one function reads: by key on both sides, or one by key and one broadcast.

Comes in: streams, keys and functions of the user. Goes out: logical nodes with two
inputs. Keys are checked where they are named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from weir.api.build import Options
from weir.api.keyed import KeyedStream
from weir.api.keyed_functions import event_time
from weir.api.places import placed
from weir.errors import PlanError
from weir.graph.plan import Broadcast
from weir.operators.functions.at_key import key_schema_of
from weir.operators.functions.interfaces import BroadcastProcessFunction, CoProcessFunction
from weir.operators.functions.process import BroadcastProcessRows, CoProcessRows, check_same_keys

if TYPE_CHECKING:
    from weir.api.stream import Stream


class ConnectedStreams:
    """Two streams. Made by `Stream.connect`; say by which keys rows of both belong together."""

    def __init__(self, left: Stream, right: Stream) -> None:
        _check_environment(left, right)
        self._left = left
        self._right = right

    def __repr__(self) -> str:
        return f"{self._left!r}.connect({self._right!r})"

    def key_by(self, left: str | Sequence[str], right: str | Sequence[str] | None = None) -> KeyedConnectedStreams:
        """By these columns of the first stream and these of the second, which are called the same if left out. Keys of
        several columns are lists: `key_by(["shop", "order"], ["shop", "id"])`."""
        left_keys = (left,) if isinstance(left, str) else tuple(left)
        right_keys = left_keys if right is None else (right,) if isinstance(right, str) else tuple(right)
        return KeyedConnectedStreams(self._left.key_by(*left_keys), self._right.key_by(*right_keys))


class KeyedConnectedStreams:
    """Two streams by key, whose rows with equal keys meet the same state."""

    def __init__(self, left: KeyedStream, right: KeyedStream) -> None:
        _check_environment(left._stream, right._stream)
        with placed("connect", left.schema):
            check_same_keys(key_schema_of(left.keys, left.schema), key_schema_of(right.keys, right.schema))
        self._left = left
        self._right = right

    def __repr__(self) -> str:
        return f"{self._left!r}.connect({self._right!r})"

    def process(
        self,
        function: CoProcessFunction,
        schema: pa.Schema | str,
        *,
        sides: Mapping[str, pa.Schema | str] | None = None,
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Call a CoProcessFunction with each row of both, at the state of its key. Event time is that of the slower
        stream. `sides` as for `KeyedStream.process`."""
        left, right = self._left._upstream, self._right._upstream
        keys, times = [self._left.keys, self._right.keys], [event_time(left), event_time(right)]
        builder = self._left._stream._environment._builder
        node = builder.joint(
            "co_process",
            lambda: CoProcessRows(keys, function, schema, sides=sides, times=times),
            [left, right],
            options=Options(uid, name, parallelism),
            kept=[left, right] if left.time == right.time else [],
        )
        return self._left._stream._following(builder.add(node))


class BroadcastConnectedStream:
    """A keyed stream, and one that every subtask gets."""

    def __init__(self, keyed: KeyedStream, broadcast: Stream) -> None:
        _check_environment(keyed._stream, broadcast)
        self._keyed = keyed
        self._broadcast = broadcast

    def __repr__(self) -> str:
        return f"{self._keyed!r}.connect({self._broadcast!r}.broadcast())"

    def process(
        self,
        function: BroadcastProcessFunction,
        schema: pa.Schema | str,
        *,
        sides: Mapping[str, pa.Schema | str] | None = None,
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Call a BroadcastProcessFunction with each row of the keyed stream, and of the broadcast one. `sides` as for
        `KeyedStream.process`."""
        keyed, broadcast = self._keyed._upstream, self._broadcast._upstream
        times = [event_time(keyed), event_time(broadcast)]
        builder = self._keyed._stream._environment._builder
        node = builder.joint(
            "broadcast_process",
            lambda: BroadcastProcessRows([self._keyed.keys, None], function, schema, sides=sides, times=times),
            [keyed, broadcast],
            options=Options(uid, name, parallelism),
            kept=[keyed],
        )
        return self._keyed._stream._following(builder.add(node))


def connect_keyed(keyed: KeyedStream, other: object) -> KeyedConnectedStreams | BroadcastConnectedStream:
    """KeyedStream.connect."""
    from weir.api.stream import Stream

    if isinstance(other, KeyedStream):
        return KeyedConnectedStreams(keyed, other)
    if isinstance(other, Stream) and all(isinstance(i.exchange, Broadcast) for i in other._upstream.inputs):
        return BroadcastConnectedStream(keyed, other)
    raise PlanError(
        f"connect: a keyed stream is connected with other.key_by(…), or with rules.broadcast(); found {other!r}"
    )


def _check_environment(left: Stream, right: object) -> None:
    from weir.api.stream import Stream

    if not isinstance(right, Stream) or right._environment is not left._environment:
        raise PlanError(f"connect: {right!r} is not a stream of the same Environment")
