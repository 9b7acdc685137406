"""What checkpoints cost a stream that has much state: barriers against halting.

Comes in: methods and sizes of state. Goes out: throughput, pauses and latencies of each, as
numbers and as a plot. Never touches the engine: to halt is done from outside of it.
"""
