"""The Nexmark queries as a workload.

Comes in: a query and a number of events. Goes out: its rate, once its answer equals that of a batch query over the
same events. Never makes events of its own: connectors/nexmark does.
"""
