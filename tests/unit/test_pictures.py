"""The pictures of the documentation are what the script draws from real runs."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def script() -> ModuleType:
    path = ROOT / "scripts" / "draw_time.py"
    spec = importlib.util.spec_from_file_location("draw_time", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["draw_time"] = module
    sys.path.insert(0, str(path.parent))  # as where a script is run, for what lies beside it
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module


DRAWING = script()


@pytest.mark.parametrize("name", sorted(DRAWING.PICTURES))
def test_a_picture_is_what_the_run_gives_now(name: str) -> None:
    kept = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert DRAWING.PICTURES[name]() == kept, "draw it again with: python scripts/draw_time.py"


def test_every_picture_of_time_is_drawn_and_shown() -> None:
    page = (ROOT / "docs" / "time.md").read_text(encoding="utf-8")
    kept = sorted(path.name for path in (ROOT / "docs").glob("time-*.svg"))
    assert kept == sorted(DRAWING.PICTURES)
    assert [name for name in kept if f"({name})" not in page] == []
