"""Rows come back to the driver: a file sink into a directory of its own, and a table read from it.

Only committed rows are ever seen. The rows travel through files, not through
checkpoints, so a large result costs a checkpoint nothing.
"""

from __future__ import annotations

import os
import weakref
from typing import Any

import pyarrow as pa

from weir.connectors.files.sink import FileSink
from weir.errors import shown
from weir.operators.sink import SinkOwner
from weir.runtime.storage.leftovers import TemporaryPlace


class Collect(FileSink):
    """Gather the rows of a bounded job (or what is committed so far) as one table.

    path: a directory that the driver and all tasks reach. By default a temporary one on this machine,
          removed when this object or the process ends: enough for an embedded Spark, not for a cluster.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._is_temporary = path is None
        self._place: TemporaryPlace | None = None
        if path is None:
            self._place = TemporaryPlace("collect")
            path = self._place.path
        super().__init__(path, "arrow")
        self._schema: pa.Schema | None = None
        self._remover: Any = None

    def __repr__(self) -> str:
        return "Collect()" if self._is_temporary else f"Collect({shown(self.path)!r})"

    def __getstate__(self) -> dict[str, Any]:
        """A copy in a task must not remove the driver's directory when it goes away."""
        return {**self.__dict__, "_remover": None, "_place": None}

    def check(self, schema: pa.Schema, name: str) -> None:
        self._schema = schema

    def validate(self, owner: SinkOwner) -> None:
        if self._place is not None:
            self._place.make()
            if self._remover is None or not self._remover.alive:
                self._remover = weakref.finalize(self, self._place.remove)
        super().validate(owner)

    def result(self) -> pa.Table:
        """All committed rows, by epoch and subtask. Empty, with the right columns, when there are none."""
        parts = self.parts()
        tables = [pa.ipc.open_file(parts.read(name)).read_all() for name in parts.committed()]
        if tables:
            return pa.concat_tables(tables)
        return (self._schema if self._schema is not None else pa.schema([])).empty_table()

    def discard(self) -> None:
        """Remove the directory with all that it holds."""
        self.parts().remove_all()
        if self._remover is not None:
            self._remover()
