"""Times that users give and are given: as far away as they like."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from tests.unit.operators.functions.test_keyed_timers import By, Echo
from tests.unit.operators.running import context
from weir.errors import UserCodeError
from weir.snapshot.watermarks import END_US


def test_a_time_may_be_far_away() -> None:
    shown: list[Any] = []

    class Far(Echo):
        def process(self, row: Any, context: Any) -> Any:
            context.timers.at(-(1 << 63))
            context.timers.at(END_US - 1)

        def on_timer(self, time: datetime, context: Any) -> Any:
            shown.append(time)

        def __deepcopy__(self, memo: Any) -> Any:
            return self

    by = By(Far())
    by.process((1, 5))
    by.operator.freeze()
    by.watermark(0)
    assert shown == [datetime.min]
    again = By(Far(), restored=by.moved())
    again.watermark(1 << 62)
    assert shown == [datetime.min]
    again.watermark(END_US)
    assert shown == [datetime.min, datetime.max]


@pytest.mark.parametrize("call", ["at", "at_processing_time", "after"])
def test_a_time_that_does_not_fit_is_refused_with_the_key(call: str) -> None:
    class Beyond(Echo):
        def process(self, row: Any, context: Any) -> Any:
            getattr(context.timers, call)("200000000d" if call == "after" else 1 << 63)

    with pytest.raises(UserCodeError, match=r"(?s)a timer for \d+ is out of range.*key: 7") as refused:
        By(Beyond()).process((7, 1))
    assert context().uid in str(refused.value)
