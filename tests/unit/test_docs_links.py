"""What the documentation points at is there: links, files, modules, settings, and commands with their options.

Reads README, docs and ADRs as text. The changelog is history: its links must lead somewhere, but the names in it may be
those of their day.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

import weir
from tests.snippets import PAGES, ROOT
from weir.cli.main import application

PACKAGE = ROOT / "src" / "weir"
RECORDS = sorted((ROOT / "docs" / "adr").glob("*.md"))
DOCUMENTS = [*PAGES, *RECORDS]
SOURCES = sorted(PACKAGE.rglob("*.py"))

LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
FENCED = re.compile(r"^```[^\n]*\n(?P<block>.*?)^```$", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`(?P<code>[^`\n]+)`")
TOP_FOLDERS = ("src", "tests", "docs", "scripts", "examples")
ROOMS = tuple(path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists())
PATH = re.compile(r"(?<![\w/.:~{-])(?P<path>[a-z]\w*(?:/[\w.-]+)+/?)")
PLACEHOLDER = re.compile(r"(?<![A-Za-z])[A-Z]{2,}(?![a-z])|…")
DOTTED = re.compile(r"(?<![\w./@-])weir(?:\.[A-Za-z_]\w*)+")
SETTING = re.compile(r"(?<![\w.])(?:Settings|Checkpoints)\.[a-z]\w*")
FILE_IN_TEXT = re.compile(r"(?<![\w/.*<{-])(?P<path>[a-z]\w*(?:/\w+)*\.py)\b")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def prose(page: Path) -> str:
    return FENCED.sub("", text_of(page))


def each_page(pages: list[Path]) -> Any:
    return pytest.mark.parametrize("page", pages, ids=name_of)


# --- Links --------------------------------------------------------------------------------------------


def anchor(heading: str) -> str:
    """As GitHub makes it: lower case, punctuation dropped, spaces to hyphens."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    return {anchor(heading) for heading in re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)}


@each_page([*DOCUMENTS, ROOT / "CHANGELOG.md"])
def test_every_link_to_a_page_or_heading_leads_somewhere(page: Path) -> None:
    broken = []
    for match in LINK.finditer(prose(page)):
        target, _, heading = match["target"].partition("#")
        if "://" in target:
            continue
        file = (page.parent / target).resolve() if target else page
        if not file.exists() or (heading and heading not in anchors(file)):
            broken.append(match["target"])
    assert broken == []


def test_the_indexes_name_every_page() -> None:
    for folder in (ROOT / "docs", ROOT / "docs" / "adr"):
        index = text_of(folder / "README.md")
        pages = [page.name for page in folder.glob("*.md") if page.name != "README.md"]
        assert [name for name in pages if f"({name})" not in index] == []


def section(page: str, heading: str) -> str:
    """The text of a page below a heading of the second level."""
    return prose(ROOT / "docs" / page).split(f"\n## {heading}\n")[1].split("\n## ")[0]


def leads_to_files(line: str) -> bool:
    return any((ROOT / "docs" / match["target"]).is_file() for match in LINK.finditer(line))


def test_every_step_of_a_walk_through_the_rooms_is_a_link_to_its_file() -> None:
    walks = section("architecture.md", "Three walks through the rooms")
    steps = re.findall(r"^\d+\. .*$", walks, re.MULTILINE)
    assert len(steps) > 20
    assert [step for step in steps if not leads_to_files(step)] == []
    named = re.findall(r"\[([^\]]+)\]\(([^)]+)\)", walks)
    assert [name for name, target in named if not target.endswith(f"/{name}")] == []


def test_every_one_of_the_ten_errands_begins_in_a_file() -> None:
    rows = re.findall(r"^\| (?:add|change) .*$", section("development.md", "Ten errands"), re.MULTILINE)
    assert len(rows) == 10
    assert [row for row in rows if not leads_to_files(row.split("|")[2])] == []


# --- Files and modules --------------------------------------------------------------------------------


def is_there(path: str) -> bool:
    first = path.split("/")[0]
    if first in TOP_FOLDERS:
        return (ROOT / path).exists()
    return first not in ROOMS or any((PACKAGE / f"{path}{ending}").exists() for ending in ("", ".py"))


@each_page(DOCUMENTS)
def test_every_file_and_folder_that_is_named_exists(page: Path) -> None:
    """`src/weir/…`, `tests/…` and the like from the top; `snapshot/commit.py` and the like below src/weir."""
    named = [match["path"].rstrip(".") for match in PATH.finditer(prose(page))]
    assert [path for path in named if not PLACEHOLDER.search(path) and not is_there(path)] == []


def resolves(dotted: str) -> bool:
    found: Any = weir
    walked = "weir"
    for part in dotted.split(".")[1:]:
        walked = f"{walked}.{part}"
        if hasattr(found, part):
            found = getattr(found, part)
        elif isinstance(found, type):
            return part in getattr(found, "__annotations__", {})
        else:
            try:
                found = importlib.import_module(walked)
            except ModuleNotFoundError:
                return False
    return True


@each_page(DOCUMENTS)
def test_every_module_and_public_name_that_is_named_exists(page: Path) -> None:
    assert sorted({name for name in DOTTED.findall(text_of(page)) if not resolves(name)}) == []


@each_page(DOCUMENTS)
def test_every_setting_that_is_named_exists(page: Path) -> None:
    assert sorted({name for name in SETTING.findall(text_of(page)) if not resolves(f"weir.{name}")}) == []


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_every_file_that_a_source_names_exists(path: Path) -> None:
    """In its own room or one around it, wherever a docstring or a comment names one; examples of commands are code."""
    tree = ast.parse(text_of(path))
    nodes = [node for node in ast.walk(tree) if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))]
    comments = re.findall(r"^\s*#.*$", text_of(path), re.MULTILINE)
    said = INLINE.sub("", "\n".join([*(ast.get_docstring(node) or "" for node in nodes), *comments]))
    places = [place for place in path.parents if place.is_relative_to(ROOT)]
    named = {match["path"] for match in FILE_IN_TEXT.finditer(said)}
    assert sorted(name for name in named if not any((place / name).exists() for place in places)) == []


# --- The command line ---------------------------------------------------------------------------------


@cache
def command_line() -> Any:
    return typer.main.get_command(application())


def options_of(command: Any) -> set[str]:
    return {option for each in command.params for option in (*each.opts, *each.secondary_opts)} | {"--help"}


def all_options(command: Any) -> set[str]:
    return options_of(command).union(*(all_options(each) for each in getattr(command, "commands", {}).values()))


def commands_in(page: Path) -> Iterator[str]:
    """Every `weir …` in a block of commands or in the text."""
    for match in FENCED.finditer(text_of(page)):
        lines = re.sub(r"\n +\[", " [", match["block"]).splitlines()
        yield from (line.removeprefix("$ ") for line in lines if line.removeprefix("$ ").startswith("weir "))
    yield from (code for code in INLINE.findall(prose(page)) if code.startswith("weir "))


def problems_of(line: str) -> list[str]:
    """What in a command does not exist. Alternatives stand as `a|b`, or ` | ` between whole commands."""
    line = line.split(" #")[0].split("   ")[0]
    words = re.findall(r"[\w-]+(?:\|[\w-]+)*|\|", line.removeprefix("weir "))
    group, reached = command_line(), [command_line()]
    problems = []
    for word in words:
        if word == "|":
            group, reached = command_line(), [command_line()]
        elif word.startswith("-"):
            if word != "--" and not any(word in options_of(command) for command in reached):
                problems.append(word)
        elif hasattr(group, "commands") and word.islower():
            problems += [name for name in word.split("|") if name not in group.commands]
            reached = [group.commands[name] for name in word.split("|") if name in group.commands]
            group = reached[0] if reached else None
    return problems


@each_page(DOCUMENTS)
def test_every_command_and_option_that_is_named_exists(page: Path) -> None:
    lines = list(commands_in(page))
    assert {line: problems for line in lines if (problems := problems_of(line))} == {}


@each_page(DOCUMENTS)
def test_every_option_that_stands_alone_belongs_to_some_command(page: Path) -> None:
    alone = [re.split(r"[ =]", code)[0] for code in INLINE.findall(prose(page)) if code.startswith("--")]
    assert sorted(set(alone) - all_options(command_line()) - {"--"}) == []


def test_a_command_that_does_not_exist_is_found() -> None:
    assert problems_of("weir stop JOB --drain") == []
    assert problems_of("weir stop JOB --drown | halt") == ["--drown", "halt"]
    assert problems_of("weir bench window|wall [--events N]") == ["wall"]
