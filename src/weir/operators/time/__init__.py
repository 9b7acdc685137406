"""How far event time has come: watermarks made of rows, and processing time as a time of rows.

Comes in: batches, and the time that the worker tells. Goes out: the same batches, watermarks. Never asks a clock.
"""
