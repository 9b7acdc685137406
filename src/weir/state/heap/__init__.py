"""Keyed state in Python dictionaries, the default: frozen without a copy, written in a background thread."""
