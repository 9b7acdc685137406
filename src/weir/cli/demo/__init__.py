"""`weir demo`: words counted while a worker is killed, and the counts verified.

Comes in: options of the command. Goes out: a display, a verdict, an exit code. Never touches what lies outside of a
directory of its own, nor any process but its own workers.
"""
