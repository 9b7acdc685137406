"""The documentation, as far as it can be checked without Spark: snippets, and tables of errors and settings."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from tests.snippets import PAGES, ROOT, Section, run_section, sections
from weir import config, errors
from weir.connectors import collection, generator
from weir.connectors.formats import line_blocks
from weir.errors import WeirError
from weir.graph import logical
from weir.operators.aggregates import partial as aggregate
from weir.operators.functions import row_operator as row_functions
from weir.runtime.job import launch
from weir.runtime.net import control, feed_inbox
from weir.runtime.net import flight as wire
from weir.runtime.net import wire_format as codec
from weir.runtime.spark import session as spark
from weir.snapshot import alignment, commit, restart
from weir.snapshot.coordinator import history
from weir.state.rocks.backend import RocksBackend

ALL = [section for page in PAGES for section in sections(page)]
PLAIN = [section for section in ALL if section.running and not section.needs_spark]
FRAGMENTS_MAX = 6
"""Snippets that do not run may rot unseen: few, and each for a reason."""

PARAGRAPH_MIN = 120
"""Characters from which on a paragraph stands once on its page."""


def short(section: Section) -> str:
    return str(section)


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


# --- Snippets -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("section", PLAIN, ids=short)
def test_the_snippets_of_a_section_run_and_print_what_the_page_says(
    section: Section, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_section(section)


def test_every_snippet_compiles_and_few_are_fragments() -> None:
    snippets = [snippet for section in ALL for snippet in section.snippets]
    for snippet in snippets:
        snippet.compiled()
    fragments = [f"{s.page}:{s.line}" for s in snippets if s.fragment]
    assert len(fragments) <= FRAGMENTS_MAX, fragments
    assert len(snippets) > 25, "the snippets are not found any more"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_nothing_is_said_twice_on_a_page(page: Path) -> None:
    paragraphs = [paragraph.strip() for paragraph in prose(page).split("\n\n")]
    said = [p for p in paragraphs if p.startswith("#") or len(p) >= PARAGRAPH_MIN]
    assert [p for p in set(said) if said.count(p) > 1] == []


# --- Tables -------------------------------------------------------------------------------------------


def rows(page: str) -> list[list[str]]:
    """The cells of all table rows of a page."""
    lines = (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]


def error_classes() -> list[type[WeirError]]:
    found = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, WeirError)]
    return sorted(found, key=lambda kind: kind.code)


def test_the_table_of_errors_has_every_code_with_its_class_and_no_other() -> None:
    listed = {cells[0].strip("`"): cells[1].strip("`") for cells in rows("errors.md") if cells[0].startswith("`")}
    assert listed == {kind.code: kind.__name__ for kind in error_classes()}


@pytest.mark.parametrize("kind", error_classes(), ids=lambda kind: kind.__name__)
def test_the_table_of_errors_tells_the_builtin_that_also_catches_it(kind: type[WeirError]) -> None:
    (cells,) = [cells for cells in rows("errors.md") if cells[0] == f"`{kind.code}`"]
    builtins = [base.__name__ for base in kind.__mro__ if base.__module__ == "builtins"]
    assert cells[2].strip("`") == (builtins[0] if builtins[0] != "Exception" else "")


SETTINGS = (config.Checkpoints, config.Settings, config.FixedDelay, config.ExponentialDelay, config.FailureRate)


@pytest.mark.parametrize("kind", SETTINGS, ids=lambda kind: kind.__name__)
def test_the_operations_page_has_every_setting_with_its_default(kind: type) -> None:
    plain = [[re.sub(r"(?<=\d)_(?=\d)", "", cell).strip("`") for cell in cells] for cells in rows("operations.md")]
    listed = {(cells[0], cells[1]) for cells in plain}
    wanted = {(f.name, repr(f.default).replace("'", '"')) for f in dataclasses.fields(kind)}
    assert sorted(wanted - listed) == []


FIXED = {
    "Failures of user code": [restart.USER_FAILURES_MAX],
    "Wait for executors": [f"{spark.SLOTS_WAIT_MS // 1_000} s"],
    "Wait for a connection": [f"{wire.CONNECT_TIMEOUT_S:g} s"],
    "One message": [f"{(codec.FRAME_BYTES_MAX >> 30) + 1} GiB"],
    "Messages that wait": [f"{control.MESSAGES_MAX:,}"],
    "Driver's memory": [f"{launch.MEMORY_WITHOUT_CHECKPOINTS_BYTES >> 20} MB"],
    "Checkpoints that are remembered": [history.RECORDS_MAX],
    "Epochs of a sink": [f"{commit.EPOCHS_PENDING_MAX:,}"],
    "Barriers on their way": [alignment.CHECKPOINTS_PENDING_MAX],
    "Rows that become Python objects": [f"{row_functions.PIECE_ROWS:,}", f"{RocksBackend.keys_at_once:,}"],
    "Keys that the first half": [f"{aggregate.HELD_KEYS_MAX:,}"],
    "Splits of a generator": [generator.SPLITS, collection.SPLITS_MAX],
    "A line of a file": [f"{line_blocks.LINE_BYTES_MAX >> 20} MB", f"{line_blocks.BLOCK_BYTES >> 20} MB"],
    "Batches of a DataFrame's partition": [feed_inbox.SPLIT_BATCHES_MAX],
    "Uid": [f"{logical.UID_BYTES_MAX} bytes"],
}


@pytest.mark.parametrize("limit", FIXED)
def test_the_operations_page_has_the_fixed_limits_as_they_are(limit: str) -> None:
    (cells,) = [cells for cells in rows("operations.md") if cells[0].startswith(limit)]
    assert [value for value in FIXED[limit] if not re.search(rf"(?<![\d,]){value}(?![\d,]\d)", cells[1])] == []
