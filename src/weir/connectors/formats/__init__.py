"""Bytes of files as tables and back: text, jsonl, csv, parquet, Arrow, in splits that may begin anywhere.

What one writes the other reads: the same rows, or an error.
"""
