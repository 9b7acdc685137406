"""`weir bench`: the commands; what they run is in weir/bench."""
