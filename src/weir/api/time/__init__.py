"""What users write about time: watermark strategies of streams, windows and their triggers.

Comes in: columns, durations and functions of the user. Goes out: values for operators. Never touches a stream.
"""
