"""What commands have in common is declared once."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import weir.cli.options

FILES = Path(weir.cli.options.__file__).parent.rglob("*.py")


def test_no_option_is_declared_twice() -> None:
    nodes = [node for path in FILES for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    calls = [node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == "typer.Option"]
    declared = Counter(ast.unparse(call) for call in calls)
    assert len(declared) > 20
    assert [text for text, times in declared.items() if times > 1] == []
