"""`weir bench`: the commands.

Comes in: arguments. Goes out: a table or JSON lines. Never measures anything itself: what the commands run is in
weir/bench.
"""
