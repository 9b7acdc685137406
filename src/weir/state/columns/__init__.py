"""Columnar state of built-in operators: values in slots, panes and rows, the kernels that work on them, and how
each goes into a checkpoint by its changes.
"""
