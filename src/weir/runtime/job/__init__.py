"""A submitted job: launching it, the handle that users hold, its door for other processes, the registry."""
