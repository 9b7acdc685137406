"""The benchmarks of large state: updates, pause, incremental, restore, rescale.

Comes in: numbers of keys and bytes. Goes out: rates and times of real jobs, whose state is checked. Never touches
what lies outside of a directory of its own.
"""
