"""The benchmarks of large state: updates, pause, incremental, restore, rescale."""
