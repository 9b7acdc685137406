"""Keyed state in RocksDB: on a local disk, larger than memory if need be, snapshots by hard links."""
