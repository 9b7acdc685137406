"""A script runs as Python would run it, and leaves the process as it was."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from weir.cli.script import run_script
from weir.errors import ConfigError


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_script_is_main_and_sees_its_arguments_and_its_neighbours(tmp_path: Path) -> None:
    write(tmp_path / "neighbour_of_script.py", "value = 41")
    script = write(
        tmp_path / "job.py",
        "import sys, pathlib, neighbour_of_script\n"
        "def main(): return f'{__name__} {sys.argv[1:]} {neighbour_of_script.value} {pathlib.Path(__file__).name}'\n"
        "assert sys.modules['__main__'].main is main\n"
        "pathlib.Path(sys.argv[1]).write_text(main())\n",
    )
    run_script(script, [str(tmp_path / "seen"), "--flag"])
    assert (tmp_path / "seen").read_text() == f"__main__ ['{tmp_path}/seen', '--flag'] 41 job.py"


def test_the_process_is_as_before_also_after_a_failure(tmp_path: Path) -> None:
    before = sys.argv, list(sys.path), sys.modules["__main__"], signal.getsignal(signal.SIGTERM)
    with pytest.raises(ZeroDivisionError):
        run_script(write(tmp_path / "job.py", "1 / 0"))
    assert (sys.argv, sys.path, sys.modules["__main__"], signal.getsignal(signal.SIGTERM)) == before


def test_a_script_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match=r"cannot read the job 'nowhere/job.py': No such file"):
        run_script(Path("nowhere/job.py"))


def test_sigterm_interrupts_as_ctrl_c_does(tmp_path: Path) -> None:
    script = write(tmp_path / "job.py", "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\nsignal.pause()\n")
    with pytest.raises(KeyboardInterrupt):
        run_script(script)
