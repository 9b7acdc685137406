"""The Nexmark benchmark's stream of an auction house.

Comes in: a seed and a range of events. Goes out: persons, auctions and bids, the same for the same numbers. Never
touches anything outside.
"""
