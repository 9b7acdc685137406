"""Python values and Arrow arrays, both ways, and types that change from one version of a job to the next.

Comes in: values, and the type that they are declared with. Goes out: values of that type. One that the type cannot keep
is an error that shows it, never another value.
"""
