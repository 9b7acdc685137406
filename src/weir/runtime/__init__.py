"""Where a job runs: the only home of threads, sockets, clocks and pyspark.

ports.py is its door: what the worker and the driver need of the world. Ladder: ports < storage, net < task, driver <
spark, local < job. Comes in: a plan and settings. Goes out: a running job and its handle.
"""
