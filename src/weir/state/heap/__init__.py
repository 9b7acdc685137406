"""Keyed state in Python dictionaries, the default.

Comes in: keys and values. Goes out: the same, frozen without a copy, and tables that a background thread writes.
Never touches a disk.
"""
