"""Keyed state in RocksDB: on a local disk, larger than memory if need be.

Comes in: keys and values as bytes. Goes out: the same, and snapshots by hard links, of which only new files are
uploaded. Never touches anything outside of its local directory.
"""
