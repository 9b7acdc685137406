"""Where rows come from and where they go: a file or folder for each system.

Comes in: locations and options of users. Goes out: sources and sinks, by the contracts in base. Never touches
the driver or another task.
"""

from weir.connectors.collection import Collection
from weir.connectors.console import Discard, Stdout
from weir.connectors.files.collect import Collect
from weir.connectors.files.sink import FileSink
from weir.connectors.files.source import Files
from weir.connectors.generator import Generator
from weir.connectors.nexmark.source import Nexmark

__all__ = ["Collect", "Collection", "Discard", "FileSink", "Files", "Generator", "Nexmark", "Stdout"]
