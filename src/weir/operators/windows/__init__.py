"""Windows of event time, of sessions and of counts: aggregates over them, functions of their rows, triggers."""
