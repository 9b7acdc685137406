"""Workloads that measure Weir and check their own results."""
