"""What users write: environments, streams, windows, joins, handles of jobs.

Comes in: calls of a script, in any order. Goes out: logical nodes (graph/) and, at `run` or `submit`, a job. Checks all
that can be checked before anything starts; never touches a thread, a socket or a batch.
"""
