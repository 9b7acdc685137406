"""A user's script, run as if by Python itself but under the command line's settings.

Comes in: a path, its arguments and overrides. Goes out: whatever the script does.
Leaves sys.argv, sys.path and __main__ as they were.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, ModuleType

from weir.errors import ConfigError


def run_script(path: Path, arguments: Sequence[str] = ()) -> None:
    """Run a Python file as __main__, with its own sys.argv and its directory first on sys.path."""
    script = path.resolve()
    try:
        source = script.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the job {str(path)!r}: {error.strerror or error}") from error
    code = compile(source, str(script), "exec")
    with _as_main(script, arguments) as module, _terminate_as_interrupt():
        exec(code, module.__dict__)


@contextmanager
def _as_main(script: Path, arguments: Sequence[str]) -> Iterator[ModuleType]:
    # Not runpy.run_path: it clears the script's globals when it returns, and a job's threads may still use them.
    module = ModuleType("__main__")
    module.__file__ = str(script)
    module.__dict__["__builtins__"] = __builtins__
    before = sys.argv, list(sys.path), sys.modules["__main__"]
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.parent))
    sys.modules["__main__"] = module
    try:
        yield module
    finally:
        sys.argv, sys.path[:], sys.modules["__main__"] = before


@contextmanager
def _terminate_as_interrupt() -> Iterator[None]:
    """Let SIGTERM cancel the job as Ctrl-C does, rather than leave its tasks to find out."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
