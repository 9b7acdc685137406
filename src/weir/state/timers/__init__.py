"""Timers: which key wants to be called at which time.

Comes in: keys and times. Goes out: those that are due, in the order of their times, and snapshots. A small head in
Python, over a log of what was set and deleted, in segments by time. Never looks at a clock.
"""
