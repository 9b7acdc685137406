"""Workloads that measure Weir, each a module.

Comes in: options of `weir bench`. Goes out: numbers, after the workload's own output was compared with a known
answer. Never touches production code's inside but to time it.
"""
