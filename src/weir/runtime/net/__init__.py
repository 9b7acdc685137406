"""Connections between the driver, its tasks and other processes of the user: Arrow Flight, frames, requests, channels.

Comes in: elements and messages. Goes out: the same, in order, at the other end, or an error in a named time. Never
looks into rows.
"""
