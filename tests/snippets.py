"""The Python snippets of the documentation: found, sorted and run.

    ```python             runs; snippets below one `##` heading share their names, from top to bottom
    ```python fragment    is only compiled: it names what a reader has and a test does not
    ```python file NAME   is saved under that name, for a command below it
    ```console            `$ weir …` commands, each run in this process, and below each what it prints
    ```text               right behind a snippet: what that snippet prints (`...` stands for anything)

A section that starts a job needs Spark (tests/spark/test_docs.py); all others do not (tests/unit/test_docs.py).
"""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

PRELUDE = """
import numpy as np
import polars as pl
import pyarrow as pa
import weir
from weir import connectors as io
"""
"""What the pages say that their snippets leave out."""

STARTS_A_JOB = re.compile(r"\$ weir run|\.(run|submit|collect|to_dataframe)\(|from_dataframe\(|\.spark\b|SparkSession")
_FENCE = re.compile(r"^```(?P<info>[^`]*)$")


@dataclass
class Snippet:
    """One fenced block of Python, or of commands; `line` is that of its first line."""

    page: str
    line: int
    code: str
    fragment: bool = False
    file: str | None = None
    """The name that it is saved under; then it does not run by itself."""
    commands: bool = False
    prints: str | None = None

    def compiled(self) -> Any:
        # Empty lines before it: a traceback then shows the page and the line in it.
        code = "" if self.commands else self.code
        return compile("\n" * (self.line - 1) + code, self.page, "exec")


@dataclass
class Section:
    """What stands below one heading of the second level."""

    page: str
    heading: str
    snippets: list[Snippet] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.page}: {self.heading}"

    @property
    def running(self) -> list[Snippet]:
        return [snippet for snippet in self.snippets if not snippet.fragment]

    @property
    def needs_spark(self) -> bool:
        return any(STARTS_A_JOB.search(snippet.code) for snippet in self.running if snippet.file is None)


def sections(page: Path) -> list[Section]:
    """The sections of a page that hold snippets."""
    name = page.relative_to(ROOT).as_posix()
    found = [Section(name, "(top)")]
    last: Snippet | None = None
    for info, line, text in _parts(page.read_text(encoding="utf-8")):
        if info is None:
            if text.startswith("## "):
                found.append(Section(name, text.removeprefix("## ")))
            last = last if not text.strip() else None
        elif info.split()[:1] == ["python"]:
            file = info.split()[2] if info.split()[1:2] == ["file"] else None
            last = Snippet(name, line, text, fragment=info.split()[1:] == ["fragment"], file=file)
            found[-1].snippets.append(last)
        elif info == "console":
            found[-1].snippets.append(Snippet(name, line, text, commands=True))
            last = None
        else:
            if info == "text" and last is not None:
                last.prints = text
            last = None
    return [section for section in found if section.snippets]


def _parts(text: str) -> Iterator[tuple[str | None, int, str]]:
    """Lines of prose (None, number, line), and fenced blocks (info, number of the first line, content)."""
    info: str | None = None
    start, block = 0, []
    for number, line in enumerate(text.splitlines(), 1):
        fence = _FENCE.match(line)
        if info is None and fence:
            info, start, block = fence["info"].strip(), number + 1, []
        elif info is None:
            yield None, number, line
        elif line == "```":
            yield info, start, "".join(f"{row}\n" for row in block)
            info = None
        else:
            block.append(line)


def run_section(section: Section) -> None:
    """Run a section's snippets in order, in the current directory."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(PRELUDE, names)
    try:
        for snippet in section.running:
            if snippet.file is not None:
                Path(snippet.file).write_text(snippet.code, encoding="utf-8")
                continue
            if snippet.commands:
                _run_commands(snippet)
                continue
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(snippet.compiled(), names)
            if snippet.prints is not None:
                check_output(snippet, printed.getvalue())
    finally:
        for job in [value for value in names.values() if hasattr(value, "trigger_checkpoint")]:
            job.cancel()  # does nothing to a job that has ended; one that runs on would keep its slots


def _run_commands(snippet: Snippet) -> None:
    """Run each command; no word on the page says how one must end, only what it prints."""
    from weir.cli.main import application

    for part in re.split(r"^\$ weir ", snippet.code, flags=re.MULTILINE)[1:]:
        arguments, _, expected = part.partition("\n")
        result = CliRunner().invoke(application(), shlex.split(arguments), env={"COLUMNS": "120"})
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        check_output(Snippet(snippet.page, snippet.line, arguments, prints=expected), result.output)


def check_output(snippet: Snippet, printed: str) -> None:
    checker, flags = doctest.OutputChecker(), doctest.ELLIPSIS
    assert checker.check_output(snippet.prints or "", printed, flags), (
        f"{snippet.page}:{snippet.line} prints\n{printed}\nand not, as the page says,\n{snippet.prints}"
    )
