"""Python values and Arrow arrays, both ways, and types that change from one version of a job to the next.

A value that a type cannot keep is an error that shows it, never another value.
"""
