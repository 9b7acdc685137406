"""The `weir` command: one file for each group of commands, and what people see on a terminal.

Comes in: arguments. Goes out: text for people, JSON for programs, an exit code.
Holds no logic that a script might want.
"""
