"""Spark SQL before, Weir in the middle, Spark SQL after: a job is a node in the Spark that you have.

    python examples/spark_sql_in_the_middle.py

Spark joins two tables; Weir reads the result straight from Spark's own scan, keeps a running state per shop, and hands
its rows back as a DataFrame; Spark aggregates those.
"""

from typing import Any

import weir

env = weir.Environment(parallelism=2, name="spark-sql-in-the-middle")
spark = env.spark  # the embedded session; with one of your own: weir.Environment(spark=spark, …)

# --- Spark SQL before ------------------------------------------------------------------------------------

spark.createDataFrame([(0, "Berlin"), (1, "Hamburg"), (2, "Munich")], "shop long, city string").createOrReplaceTempView(
    "shops"
)
spark.range(3_000).selectExpr("id AS sale", "id % 3 AS shop", "id % 100 AS euros").createOrReplaceTempView("sales")
sales = spark.sql("SELECT sale, city, euros FROM sales JOIN shops USING (shop)")

# --- Weir in the middle ------------------------------------------------------------------------------------


def records(sale: Any, state: Any) -> Any:
    """A row whenever a city sells for more than it ever did before."""
    if sale.euros > state.best.value:
        state.best.value = sale.euros
        yield sale.city, sale.sale, sale.euros


best_so_far = (
    env.from_dataframe(sales, uid="sales")
    .key_by("city")
    .process(
        records,
        "city string, sale long, euros long",
        state={"best": weir.ValueState("long", default=-1)},
        uid="records",
    )
    .to_dataframe()
)

# --- Spark SQL after ---------------------------------------------------------------------------------------

best_so_far.createOrReplaceTempView("records")
spark.sql(
    "SELECT city, count(*) > 0 AS has_records, max(euros) AS best FROM records GROUP BY city ORDER BY city"
).show()
