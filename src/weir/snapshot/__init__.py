"""The exactly-once core: pure machines that decide, and the data that they decide over."""
