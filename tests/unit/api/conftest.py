"""What the tests of the api share."""

from __future__ import annotations

import sys
import types

import pytest

from tests.unit.api.fakes import FakeLauncher


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> FakeLauncher:
    """Stands where the runtime's launcher is, so that no Spark is needed."""
    launcher = FakeLauncher()
    module = types.ModuleType("weir.runtime.job.launch")
    module.submit = launcher.submit  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "weir.runtime.job.launch", module)
    return launcher
