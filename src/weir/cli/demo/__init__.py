"""`weir demo`: words counted while a worker is killed, and the counts verified."""
