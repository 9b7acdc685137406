"""Jobs that let rows out later, for the simulation: what they hold is state, and is out once at most."""

from __future__ import annotations

from typing import Any

import weir
from tests.sim.externals import SCHEMA
from weir.operators.sink import Sink


class Held(weir.ProcessFunction):
    """Each row comes out when the next one of its key does."""

    last = weir.ListState("long")

    def process(self, row: Any, context: Any) -> Any:
        before = self.last.get()
        self.last.set([row.id, row.key, row.value])
        return [tuple(before)] if before else []


def hold(stream: Any, sink: Sink, prefix: str) -> None:
    stream.key_by("key").process(Held(), SCHEMA, uid=f"{prefix}held").write(sink, uid=f"{prefix}held-out")
