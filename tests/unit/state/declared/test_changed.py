"""Which rows of heap state have changed: what is noted is bounded, whatever becomes of checkpoints."""

from __future__ import annotations

from weir.snapshot.parts import StatePart
from weir.state.declared.changed import LISTED_ROWS_LEAST, ChangedRows

PART = StatePart("changes", {}, {"rows": 0, "whole_rows": 0})


def noted(changes: ChangedRows) -> int:
    return sum(len(lot) for _, lots in changes._unconfirmed for lot in lots or ())


def test_while_no_checkpoint_completes_no_more_is_kept_than_it_takes_to_write_the_state_anew() -> None:
    changes, rows = ChangedRows(), 20_000
    number, _ = changes.freeze(rows)
    changes.confirmed(number, PART)
    for _ in range(100):
        for row in range(rows):
            changes.note(row)
        changes.tidy(rows)
        number, since = changes.freeze(rows)
        assert noted(changes) < 8 * rows + LISTED_ROWS_LEAST
    assert since is None
    changes.confirmed(number, PART)
    changes.note(1)
    _, since = changes.freeze(rows)
    assert since is not None
    assert [list(lot) for lot in since.lots] == [[1]]
