"""Every snippet of the documentation that starts a job, run as it stands on one shared Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.snippets import PAGES, Section, run_section, sections

WITH_SPARK = [section for page in PAGES for section in sections(page) if section.needs_spark]


@pytest.mark.parametrize("section", WITH_SPARK, ids=str)
def test_the_snippets_of_a_section_run_and_print_what_the_page_says(
    section: Section, embedded: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_section(section)
