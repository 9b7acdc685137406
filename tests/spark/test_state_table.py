"""State as a Spark DataFrame."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import weir

pytestmark = pytest.mark.spark

ROWS = [(f"key {i % 50}", i) for i in range(1_000)]


class Remembering(weir.ProcessFunction):
    """Keeps a value and a blob by key."""

    last = weir.ValueState("long")
    secret = weir.ValueState(weir.Pickled())

    def process(self, row: Any, context: Any) -> Any:
        self.last.set(row.value)
        self.secret.set({"row": row.value})
        return None


def test_spark_reads_the_state_of_a_checkpoint_and_agrees_about_key_groups(embedded: Any, tmp_path: Path) -> None:
    env = weir.Environment(
        embedded, parallelism=2, checkpoints=weir.Checkpoints(every=None, to=str(tmp_path)), name="state-table"
    )
    # One reader: which value of a key is the last must not depend on which of two is ahead.
    rows = env.from_collection(ROWS, "key string, value long", uid="rows", parallelism=1)
    rows.key_by("key").agg(total=weir.sum("value"), uid="sums").write(weir.connectors.Discard(), uid="sink")
    rows.key_by("key").process(Remembering(), "x long", uid="last").write(weir.connectors.Discard(), uid="other")
    env.run()
    (checkpoint,) = (tmp_path / "state-table").glob("*/chk-*")
    sums = weir.state.read(embedded, checkpoint, uid="sums")
    wrong = sums.where("key_group != pmod(xxhash64(key), 128)").count()
    found = {row.key: row["total#0"] for row in sums.collect()}
    expected: dict[str, int] = {}
    for key, value in ROWS:
        expected[key] = expected.get(key, 0) + value
    assert wrong == 0
    assert found == expected
    last = weir.state.read(embedded, checkpoint, uid="last", state="last")
    assert {row.key: row.value for row in last.collect()} == dict(ROWS)
    secret = weir.state.read(embedded, checkpoint, uid="last", state="secret")
    assert all(isinstance(row.value, (bytes, bytearray)) for row in secret.collect())
