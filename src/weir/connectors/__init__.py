"""Where rows come from and where they go."""

from weir.connectors.collect import Collect
from weir.connectors.console import Discard, Stdout
from weir.connectors.file_sink import FileSink

__all__ = ["Collect", "Discard", "FileSink", "Stdout"]
