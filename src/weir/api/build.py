"""One operator after another: each is checked against what comes in, then kept.

Comes in: specs and options from streams. Goes out: logical nodes that know where
they were written. An operator that does not fit is refused at that very line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import pyarrow as pa

from weir.api.places import place_of_caller, placed
from weir.api.upstream import Upstream
from weir.errors import PlanError
from weir.graph.logical import Input, LogicalGraph, Node, Spec, TimeColumn
from weir.ids import Uid
from weir.operators.base import OperatorSpec
from weir.operators.sink import Sink
from weir.operators.source import Source

MakeSpec: TypeAlias = Callable[[], OperatorSpec]
"""Specs are made where their errors are given a place."""


@dataclass(frozen=True)
class Options:
    """What every operator may be given.

    uid: the stable name that its state is matched by. name: what people see. parallelism: how many subtasks.
    """

    uid: str | None = None
    name: str | None = None
    parallelism: int | None = None

    def __post_init__(self) -> None:
        for option in ("uid", "name"):
            value = getattr(self, option)
            if value is not None and not isinstance(value, str):
                raise PlanError(
                    f"{option}={value!r}: this names the operator and must be a string; "
                    f"to call a column '{option}', alias an expression or pass a dict of aggregates"
                )
        check_parallelism(self.parallelism)


def check_parallelism(value: object) -> None:
    """Refuse anything but None and whole numbers from 1 on."""
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise PlanError(f"parallelism={value!r}: it must be a whole number of at least 1")


class Builder:
    """The operators of one environment so far. What `source`, `operator` and `sink` make is kept by `add` only."""

    def __init__(self) -> None:
        self.graph = LogicalGraph()

    def add(self, node: Node) -> Upstream:
        """Keep a node; what the next operator may read."""
        return Upstream.of(self.graph.add(node))

    def source(self, kind: str, spec: Source, options: Options) -> Node:
        return self._node(kind, spec, (), schema=spec.schema, options=options)

    def operator(
        self,
        kind: str,
        make: MakeSpec,
        upstream: Upstream,
        *,
        options: Options,
        make_combine: MakeSpec | None = None,
        time: TimeColumn | None = None,
    ) -> Node:
        """An operator behind `upstream`; what `make_combine` makes runs before the exchange and feeds it. `time`: where
        what comes out has its event time; None: where it was before, as long as that column is there."""
        with placed(kind, upstream.schema):
            spec = make()
            combine = None if make_combine is None else make_combine()
            before = upstream.schema if combine is None else combine.schema([upstream.schema])
            schema = spec.schema([before])
            sides = spec.sides([before])
            time = time or kept_time(upstream, schema, spec)
        return self._node(
            kind, spec, upstream.inputs, schema=schema, options=options, combine=combine, time=time, sides=sides
        )

    def joint(
        self,
        kind: str,
        make: MakeSpec,
        upstreams: Sequence[Upstream],
        *,
        options: Options,
        kept: Sequence[Upstream] = (),
        time: TimeColumn | None = None,
    ) -> Node:
        """An operator behind several streams that differ in meaning, each an input of its own. `kept`: those whose
        event time what comes out may have kept."""
        schemas = [upstream.schema for upstream in upstreams]
        with placed(kind, schemas[0]):
            spec = make()
            schema = spec.schema(schemas)
            sides = spec.sides(schemas)
        inputs = tuple(
            replace(i, input_number=number) for number, upstream in enumerate(upstreams) for i in upstream.inputs
        )
        time = time or (kept_time(kept[0], schema) if kept else None)
        return self._node(kind, spec, inputs, schema=schema, options=options, time=time, sides=sides)

    def sink(self, kind: str, spec: Sink, upstream: Upstream, *, options: Options) -> Node:
        with placed(kind, upstream.schema):
            spec.check(upstream.schema, options.uid or kind)
        return self._node(kind, spec, upstream.inputs, schema=upstream.schema, options=options)

    def _node(
        self,
        kind: str,
        spec: Spec,
        inputs: tuple[Input, ...],
        *,
        schema: pa.Schema,
        options: Options,
        combine: OperatorSpec | None = None,
        time: TimeColumn | None = None,
        sides: Mapping[str, pa.Schema] | None = None,
    ) -> Node:
        return Node(
            id=self.graph.next_id,
            kind=kind,
            spec=spec,
            inputs=inputs,
            schema=schema,
            uid=None if options.uid is None else Uid(options.uid),
            name=options.name,
            parallelism=options.parallelism,
            combine=combine,
            place=place_of_caller(),
            time=time,
            sides=sides or {},
        )


def kept_time(upstream: Upstream, schema: pa.Schema, spec: OperatorSpec | None = None) -> TimeColumn | None:
    """Where rows of this schema have the event time of the stream before, if they still do. A time that an expression
    changes would not fit its watermarks any more: PlanError."""
    time = upstream.time
    if time is None:
        return None
    name = time.name if spec is None else spec.kept_as(time.name, upstream.schema)
    if name is None and time.name in schema.names:
        raise PlanError(
            f"it changes {time.name!r}, the rows' event time, and the watermarks made from it would not fit any more; "
            f"give the new column another name and call with_watermarks(…) with that, or keep the old time beside it, "
            f"as in (…, event_time={time.name!r})"
        )
    if name is None or name not in schema.names or not pa.types.is_timestamp(schema.field(name).type):
        return None
    return replace(time, name=name)
