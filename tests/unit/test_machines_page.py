"""docs/machines.md is what the machines' tables say."""

from __future__ import annotations

from runpy import run_path

from tests.unit.test_tidy import ROOT


def test_the_page_of_the_machines_is_up_to_date() -> None:
    script = run_path(str(ROOT / "scripts" / "draw_machines.py"))
    assert script["PAGE"].read_text() == script["page"](), "run: python scripts/draw_machines.py"
