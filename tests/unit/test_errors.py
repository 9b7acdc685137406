"""The exception tree: drawn as it is, every error picklable, every code its own.

Errors cross from Python workers through Spark to the driver, so losing a message
or a detail on the way would hide the cause of a failure.
"""

from __future__ import annotations

import pickle
import re

import pytest

from weir import errors
from weir.errors import WeirError

TREE_LINE = re.compile(r"^    (?P<indent>[│├└─ ]*)(?P<name>\w+)(?: +\((?P<builtin>\w+)\))?(?: +(?P<meaning>\S.*))?$")
INDENT = 4


def error_classes(kind: type[WeirError] = WeirError) -> list[type[WeirError]]:
    found = [kind]
    for child in kind.__subclasses__():
        found += [c for c in error_classes(child) if c not in found]
    return [c for c in found if c.__module__ == "weir.errors"]


ALL = error_classes()


def drawn_tree() -> dict[str, tuple[str | None, str | None]]:
    """Name to (parent, builtin), read from the drawing in the module's docstring."""
    drawn: dict[str, tuple[str | None, str | None]] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = TREE_LINE.match(line)
        if match is None:
            continue
        depth = len(match["indent"]) // INDENT
        path = [*path[:depth], match["name"]]
        drawn[match["name"]] = (path[depth - 1] if depth else None, match["builtin"])
    return drawn


def test_the_drawing_names_every_error_and_no_other() -> None:
    assert set(drawn_tree()) == {kind.__name__ for kind in ALL}


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_the_drawing_shows_the_true_parent_and_builtin(kind: type[WeirError]) -> None:
    parents = [base.__name__ for base in kind.__bases__ if issubclass(base, WeirError)]
    builtins = [base.__name__ for base in kind.__bases__ if base.__module__ == "builtins" and base is not Exception]
    expected = (parents[0] if parents else None, builtins[0] if builtins else None)
    assert drawn_tree()[kind.__name__] == expected


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_an_error_survives_pickling_with_its_message_and_details(kind: type[WeirError]) -> None:
    error = kind("operator 'totals': found 3, expected 2; do less", uid="totals", rows=3)
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is kind
    assert str(back) == back.message == "operator 'totals': found 3, expected 2; do less"
    assert back.details == {"uid": "totals", "rows": 3}


def test_every_error_has_a_code_of_its_own() -> None:
    codes = [vars(kind).get("code") for kind in ALL]
    assert None not in codes, "a class inherits its parent's code"
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"[A-Z]+(_[A-Z]+)*", str(code)) for code in codes)


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_every_error_says_what_it_means(kind: type[WeirError]) -> None:
    assert (vars(kind).get("__doc__") or "").strip()


def test_an_error_can_be_caught_by_its_natural_builtin() -> None:
    with pytest.raises(ValueError, match="no column 'x'"):
        raise errors.SchemaError("no column 'x'")
    with pytest.raises(OSError, match="disk"):
        raise errors.StorageFull("disk")
