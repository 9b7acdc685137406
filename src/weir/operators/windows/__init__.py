"""Windows of event time, of sessions and of counts: aggregates over them, functions of their rows, triggers.

Comes in: batches and watermarks. Goes out: results of windows that are over, or that a trigger fires. Panes lie in
state/columns; aggregates never touch a Python row.
"""
