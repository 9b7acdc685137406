"""Files as a source and as an exactly-once sink.

Comes in: locations, and batches for the sink. Goes out: splits and their rows; part files that appear once. Bytes
become rows in formats/; storage is never reached but through its port.
"""
