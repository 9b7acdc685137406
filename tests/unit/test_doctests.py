"""Every example in a docstring of src/weir runs and prints what it says.

Modules are found by walking the package, so that a new one cannot be forgotten.
"""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"


def modules_with_examples() -> list[str]:
    paths = sorted(path for path in SOURCE.glob("weir/**/*.py") if ">>> " in path.read_text(encoding="utf-8"))
    return [".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__") for path in paths]


@pytest.mark.parametrize("name", modules_with_examples())
def test_the_examples_of_a_module_print_what_they_say(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert result.attempted > 0
    assert result.failed == 0
