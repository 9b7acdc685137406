"""Bytes of files as tables and back: text, jsonl, csv, parquet, Arrow, in splits that may begin anywhere.

Comes in: bytes, or tables. Goes out: tables, or bytes. What one writes the other reads: the same rows, or an error.
Never touches checkpoints, nor decides which files are read.
"""
