"""The driver's loop for one job: attempts, claims, checkpoints, restarts, the end.

Comes in: what tasks tell, the clock, what users ask for. Goes out: orders to tasks, manifests, notices. Deciding is
snapshot/'s; the world is behind ports.
"""
