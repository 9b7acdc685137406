"""Columnar state of built-in operators: values in slots, panes and rows, and the kernels that work on them.

Comes in: columns of keys and values. Goes out: columns, and snapshots of what has changed. Never touches a row as a
Python object.
"""
