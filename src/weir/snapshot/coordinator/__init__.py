"""The coordinator of a job's checkpoints: when they begin, complete and fail, and what is asked for besides.

Comes in: what tasks say, what became of manifests, the time. Goes out: orders. Never performs one: pure,
like all of snapshot/.
"""
