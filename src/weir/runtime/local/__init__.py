"""A whole job in one thread of this process: the production driver and workers over ports in memory."""
