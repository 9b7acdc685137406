"""Functions of single rows, with or without a key, state and timers: map, flat_map, process, reduce, map_async."""
