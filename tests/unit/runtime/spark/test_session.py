"""What is said about slots, with a Spark that only counts them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from weir.errors import SlotsMissing
from weir.runtime.spark import session as session_module
from weir.runtime.spark.session import check_slots


@pytest.fixture
def busy_spark(monkeypatch: pytest.MonkeyPatch) -> Any:
    """local[4], in which 3 tasks run."""
    monkeypatch.setattr(session_module, "slots", lambda session: 4)
    monkeypatch.setattr(session_module, "busy_slots", lambda session: 3)
    return SimpleNamespace(_sc=SimpleNamespace(master="local[4]"))


def test_slots_that_the_job_itself_holds_are_not_taken_by_others(busy_spark: Any) -> None:
    with pytest.raises(SlotsMissing, match="needs 5 task slots at once; Spark has 4: 1 missing"):
        check_slots(busy_spark, 5, own=3)
    with pytest.raises(SlotsMissing, match="Spark has 4, of which 1 are taken by other work: 2 missing"):
        check_slots(busy_spark, 5, own=2)


def test_slots_of_others_count_as_taken(busy_spark: Any) -> None:
    with pytest.raises(SlotsMissing, match="Spark has 4, of which 3 are taken by other work: 4 missing"):
        check_slots(busy_spark, 5)
