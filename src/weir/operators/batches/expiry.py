"""When the values of a batch function expire.

Comes in: their times-to-live, and when keys were last touched. Goes out: which values,
and which whole rows, have expired. All values of a key are written together, so one
moment serves them all. The clock is handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from weir.errors import PlanError
from weir.state.declared.base import Ttl
from weir.state.declared.cursor import TOUCHED_COLUMN

TOUCHED = pa.field(TOUCHED_COLUMN, pa.int64())


class Expiry:
    """The times-to-live of a table's values. `ttls`: one for each value, or None; at least one is given."""

    def __init__(self, ttls: Sequence[Ttl | None], now_ms: Callable[[], int]) -> None:
        self._after_ms = [None if ttl is None else ttl.after_ms for ttl in ttls]
        self._now_ms = now_ms
        self.on_read = any(ttl is not None and ttl.refresh == "read" for ttl in ttls)
        """Whether reading counts as touching."""
        # A row with a value that lives forever does so itself.
        some = [after_ms for after_ms in self._after_ms if after_ms is not None]
        self._row_after_ms = max(some) if len(some) == len(ttls) else None

    def stamps(self, count: int) -> pa.Array:
        """The present, for rows that are touched now."""
        return pa.array(np.full(count, self._now_ms(), np.int64))

    def rows(self, touched: pa.Array) -> npt.NDArray[np.bool_]:
        """Whether nothing of a row lives any more."""
        if self._row_after_ms is None:
            return np.zeros(len(touched), np.bool_)
        expired: npt.NDArray[np.bool_] = touched.to_numpy() <= self._now_ms() - self._row_after_ms
        return expired

    def masked(self, columns: Sequence[pa.Array], touched: pa.Array, defaults: Sequence[pa.Scalar]) -> list[pa.Array]:
        """The values, with defaults where they have expired."""
        now_ms, moments, alive = self._now_ms(), touched.to_numpy(), []
        for after_ms, column, default in zip(self._after_ms, columns, defaults, strict=True):
            lives = None if after_ms is None else moments > now_ms - after_ms
            alive.append(column if lives is None or lives.all() else pc.if_else(pa.array(lives), column, default))
        return alive


def check_ttls(ttls: Sequence[Ttl | None], operator: str) -> None:
    """PlanError when the values of one function are refreshed in different ways."""
    if len({ttl.refresh for ttl in ttls if ttl is not None}) > 1:
        raise PlanError(
            f"{operator}: some values have Ttl(…, refresh='read') and some refresh='write'; all values of a key are"
            " read and written together, so choose one"
        )


def expiry_for(ttls: Sequence[Ttl | None], now_ms: Callable[[], int]) -> Expiry | None:
    """None: nothing expires."""
    return Expiry(ttls, now_ms) if any(ttl is not None for ttl in ttls) else None
