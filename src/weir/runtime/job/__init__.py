"""A submitted job: launching it, the handle that users hold, its door for other processes, the registry.

Comes in: a plan, settings, what users ask for. Goes out: a driver on a thread of its own, answers, notices. Never
decides about checkpoints or restarts.
"""
