"""What a job is, before it runs: logical nodes as the user wrote them, and the plan that is made of them.

Comes in: nodes from api/. Goes out: vertices (chains of operators), exchanges and channels, as values that can be
pickled and explained. Never touches data, storage or Spark.
"""
