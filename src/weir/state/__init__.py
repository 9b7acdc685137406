"""What a task remembers, and what a checkpoint holds of it.

The rooms below are private: keys/ (where a key lives), values/ (Python and Arrow), declared/ (what users declare),
heap/ and rocks/ (the backends), columns/ (columnar state of built-in operators). Comes in: keys and values. Goes out:
frozen states and tables for snapshots. They never touch a clock, a socket or Spark.

Public here is how people look into checkpoints: `weir.state.read(spark, location, uid=…)` and its companions.
"""

from weir.api.state_table import StateSummary, describe, read, state_tables

__all__ = ["StateSummary", "describe", "read", "state_tables"]
