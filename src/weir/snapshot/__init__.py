"""The exactly-once core: pure machines that decide, and the data that they decide over.

Comes in: events, with the time and chance inside. Goes out: effects. Never touches a clock, a thread, a socket, a
file or a log; who performs the effects is in runtime/.
"""
