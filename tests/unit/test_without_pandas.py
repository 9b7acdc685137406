"""Weir needs no pandas: nothing of the engine may reach for it, directly or by a library that does."""

from __future__ import annotations

import subprocess
import sys

JOB = '''
import sys


class NoPandas:
    """As if it were not installed."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'", name="pandas")


sys.meta_path.insert(0, NoPandas())
import weir
from weir import connectors as io
from weir.testing import run_local


class Seen(weir.ProcessFunction):
    seen = weir.ValueState("long", default=0)
    small = weir.ValueState("tinyint", default=0)

    def process(self, row, context):
        self.seen.value += 1
        self.small.value = self.seen.value % 100
        yield row.key, self.seen.value


env = weir.Environment(parallelism=2)
kinds = "key long, n int, few smallint, x double, f float, name string, ok boolean, day date, ts timestamp"
rows = env.generate(
    1_000,
    lambda n: {
        "key": n % 10, "n": n.astype("int32"), "few": (n % 7).astype("int16"), "x": n / 2,
        "f": (n / 4).astype("float32"), "name": [str(number) for number in n], "ok": n % 2 == 0,
        "day": n.astype("datetime64[D]"), "ts": (n * 1_000_000).astype("datetime64[us]"),
    },
    kinds, watermark=weir.monotonic("ts"), uid="rows",
)
keyed = rows.key_by("key")
keyed.agg(
    n=weir.count(), total=weir.sum("n"), few=weir.max("few"), x=weir.avg("x"), f=weir.min("f"), last=weir.last("name"),
    ok=weir.first("ok"), day=weir.max("day"), uid="totals",
).write(io.Discard(), uid="running")
keyed.window(weir.tumbling("100s")).agg(n=weir.count(), uid="windows").write(io.Discard(), uid="windowed")
keyed.process(Seen(), "key long, seen long", uid="seen").write(io.Discard(), uid="processed")
rows.map(lambda row: (row.n + 1,), "n long", uid="plus").write(io.Discard(), uid="mapped")
found = run_local(env)
print(sorted(found["running"].group_by("key").aggregate([("n", "max")])["n_max"].to_pylist()))
print(sum(found["windowed"]["n"].to_pylist()), found["processed"].num_rows, sum(found["mapped"]["n"].to_pylist()))
'''


def test_a_job_of_every_kind_runs_where_pandas_is_not_installed() -> None:
    done = subprocess.run([sys.executable, "-c", JOB], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [str([100] * 10), "1000 1000 500500"]
