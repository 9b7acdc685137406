"""Session windows: aggregates over stretches of activity, whose sessions lie in a head and in segments.

Comes in: rows, or pieces of sessions, and watermarks. Goes out: whole sessions. Never does IO or looks at the clock.
"""
