"""Where rows come from and where they go."""

from weir.connectors.collect import Collect
from weir.connectors.collection import Collection
from weir.connectors.console import Discard, Stdout
from weir.connectors.file_sink import FileSink
from weir.connectors.files import Files
from weir.connectors.generator import Generator
from weir.connectors.nexmark import Nexmark

__all__ = ["Collect", "Collection", "Discard", "FileSink", "Files", "Generator", "Nexmark", "Stdout"]
