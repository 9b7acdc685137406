"""The house rules, kept by a test: the import ladder, the pure core, sizes, docstrings and habits.

Reads every Python file as a syntax tree and imports none of them. A rule that
turns out to be wrong is changed here, in the open, never worked around.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "weir"

LADDER = ("version", "texts", "errors", "ids", "config", "snapshot", "schema", "state", "operators", "graph", "runtime")
LADDER += ("connectors", "api", "bench", "cli", "testing", "__main__")
"""Each may import from itself and from those to its left, in any form: at the top, in a function, for types only."""

SUBLADDERS: dict[str, tuple[str, ...]] = {
    "config": ("units checks names", "backends checkpoints restart", "settings", "job"),
    "state": (
        "aside local_disk pieces",
        "place",
        "frozen",
        "values",
        "keys",
        "changes",
        "declared",
        "backend",
        "operator_state heap columns",
        "timers waiting rocks",
        "backends",
    ),
    "operators": (
        "calls",
        "base",
        "user_code",
        "source sink loop",
        "expressions",
        "time",
        "functions",
        "aggregates",
        "batches",
        "windows",
        "joins",
    ),
    "runtime": ("pace aside", "ports clock secret", "storage net", "task driver", "spark local", "job"),
    "connectors": ("base names strides", "formats", "collection console files generator dataframe", "nexmark"),
    "cli": ("failures options", "commands progress script session fsck", "bench demo jobs state", "main"),
}
"""The same inside of the larger rooms; those on one step import nothing from each other."""

FACE = "weir"
"""The package's own __init__: it imports from everywhere, and only these import from it."""
MAY_IMPORT_THE_FACE = ("bench", "cli", "testing")
FACES = (PACKAGE / "__init__.py", PACKAGE / "state" / "__init__.py")
"""What users import from: these may reach up the ladder."""

SNAPSHOT_MAY_IMPORT = frozenset(
    "__future__ abc bisect collections dataclasses enum functools hashlib heapq itertools json math operator re types"
    " typing weir zlib".split()
)
"""A closed list: no clock, thread, socket, file, randomness, logging or engine can slip in under another name."""
SNAPSHOT_MAY_NOT_CALL = frozenset({"open", "print", "input", "exec", "eval", "__import__", "id", "hash"})

IMPURE = frozenset(
    "asyncio concurrent logging multiprocessing os pyspark py4j queue random secrets select signal socket subprocess"
    " tempfile threading time uuid".split()
)
"""What neither an operator nor the graph may import: they are batches in, batches out, and a value."""

ASSEMBLIES = ("job/launch.py", "local/run.py", "task/main.py")
"""Where the real ports are put together. What the simulation runs, too, opens no storage but through its own."""

FILE_LINES_MAX = 400
FOLDER_FILES_MAX = 20
FUNCTION_LINES_MAX = 60
UNIT = ROOT / "tests" / "unit"
CROWDED = (ROOT / "tests" / "sim", ROOT / "tests" / "spark")
"""One suite each, not rooms of a house."""
UNFINISHED = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "X" + "XX", "HA" + "CK")) + r")\b")


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


SOURCE_FILES = python_files("src")
TEST_FILES = python_files("tests")
ALL_FILES = SOURCE_FILES + TEST_FILES + python_files("examples", "bench", "scripts")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def short(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of everything that a file imports, wherever in the file the import stands."""
    package = path.relative_to(ROOT / "src").parent.parts if PACKAGE in path.parents else ()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def rung_of(dotted: str) -> str:
    """The step of the ladder that a dotted name below weir stands on; the face for a name of weir itself."""
    parts = dotted.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in LADDER else FACE


def part_of(path: Path) -> str:
    """The step of the ladder that a source file stands on."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def files_in(*parts: str) -> list[Path]:
    return [path for path in SOURCE_FILES if part_of(path) in parts]


def each(paths: list[Path]) -> Callable[[Callable[[Path], None]], Callable[[], None]]:
    """One test for all the files, which names those that fail it."""

    def made(check: Callable[[Path], None]) -> Callable[[], None]:
        def test() -> None:
            failures = [f"{short(path)}: {failure}" for path in paths if (failure := failure_of(check, path))]
            assert not failures, "\n".join(failures)

        return test

    return made


def failure_of(check: Callable[[Path], None], path: Path) -> str | None:
    try:
        check(path)
    except AssertionError as error:
        return str(error)
    return None


# --- Imports ------------------------------------------------------------------------------------------


def test_every_source_file_stands_on_the_ladder() -> None:
    assert {part_of(path) for path in SOURCE_FILES} - {"__init__"} <= set(LADDER)


@each(SOURCE_FILES)
def test_imports_point_down_the_ladder_only(path: Path) -> None:
    part = part_of(path)
    allowed = {FACE, *LADDER} if path in FACES else {*LADDER[: LADDER.index(part) + 1]}
    if part in MAY_IMPORT_THE_FACE:
        allowed |= {FACE}
    wrong = [
        f"{short(path)}:{line} imports {name}"
        for line, name in imports_of(path)
        if name.split(".")[0] == "weir" and rung_of(name) not in allowed
    ]
    assert wrong == []


@each([path for path in SOURCE_FILES if path.parent != PACKAGE and path not in FACES])
def test_imports_point_down_the_ladder_inside_of_a_room(path: Path) -> None:
    room, step = steps_of(path.relative_to(PACKAGE).with_suffix("").parts)
    if room not in SUBLADDERS or step == "__init__":
        return
    height = height_of(room, step)
    wrong = [
        f"{line} imports {name}"
        for line, name in imports_of(path)
        if steps_of(name.split(".")[1:])[0] == room
        and (other := steps_of(name.split(".")[1:])[1]) != step
        and height_of(room, other) >= height
    ]
    assert wrong == []


def steps_of(parts: Sequence[str]) -> tuple[str, str]:
    """The room, and the step inside of it, that a file or a dotted name below weir stands on."""
    return (parts[0], parts[1]) if len(parts) > 1 else ("", "")


def height_of(room: str, step: str) -> int:
    heights = {name: height for height, names in enumerate(SUBLADDERS[room]) for name in names.split()}
    assert step in heights, f"{step} has no step on the ladder of {room}"
    return heights[step]


@each(files_in("snapshot"))
def test_the_snapshot_core_touches_no_clock_thread_socket_file_or_engine(path: Path) -> None:
    imported = [f"{line} {name}" for line, name in imports_of(path) if name.split(".")[0] not in SNAPSHOT_MAY_IMPORT]
    calls = [node for node in ast.walk(tree_of(path)) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    called = [f"{node.lineno} {node.func.id}" for node in calls if node.func.id in SNAPSHOT_MAY_NOT_CALL]  # type: ignore[attr-defined]
    assert imported + called == []


@each(files_in("runtime"))
def test_storage_is_opened_by_who_puts_ports_together_and_handed_to_everybody_else(path: Path) -> None:
    if short(path).removeprefix("src/weir/runtime/") in (*ASSEMBLIES, "storage/opening.py"):
        return
    opened = [
        name
        for _, name in imports_of(path)
        if name.startswith("weir.runtime.storage.opening") or name.endswith(".patience_of")
    ]
    assert not opened, f"opens storage by itself ({opened[0]}): take an Opener (runtime/ports.py)"


@each(files_in("operators", "graph"))
def test_operators_and_graph_touch_no_clock_thread_socket_or_spark(path: Path) -> None:
    assert [f"{line} {name}" for line, name in imports_of(path) if name.split(".")[0] in IMPURE] == []


@each([path for path in ALL_FILES if path.name == "__init__.py"])
def test_init_files_hold_imports_only(path: Path) -> None:
    other = [node for node in tree_of(path).body if not (is_import(node) or is_text(node) or is_all(node))]
    assert [f"{short(path)}:{node.lineno}" for node in other] == []


@each(SOURCE_FILES)
def test_nothing_happens_at_import_time(path: Path) -> None:
    """Names may be bound at the top of a module; nothing may be done there."""
    doing = (ast.For, ast.While, ast.With, ast.Delete, ast.Assert, ast.Raise)
    done = [
        node
        for node in tree_of(path).body
        if isinstance(node, doing) or (isinstance(node, ast.Expr) and not is_text(node))
    ]
    assert [f"{short(path)}:{node.lineno}" for node in done] == []


def is_import(node: ast.stmt) -> bool:
    return isinstance(node, (ast.Import, ast.ImportFrom))


def is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def is_all(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]


# --- Size and prose -----------------------------------------------------------------------------------


@each(ALL_FILES)
def test_every_module_says_what_it_is(path: Path) -> None:
    tree = tree_of(path)
    assert not tree.body or ast.get_docstring(tree), f"{short(path)} has no docstring"


ROOMS = [path for path in SOURCE_FILES if path.name == "__init__.py" and path not in FACES]


@each(ROOMS)
def test_every_room_says_what_comes_in_what_goes_out_and_what_it_never_does(path: Path) -> None:
    text = " ".join((ast.get_docstring(tree_of(path)) or "").split()).lower()
    missing = [words for words in ("comes in", "goes out") if words not in text]
    missing += [] if re.search(r"\b(never|neither|no logic|no clock|only home|behind ports)\b", text) else ["never"]
    assert not missing, f"{short(path)} does not say: {', '.join(missing)}"


@each(ALL_FILES)
def test_files_and_functions_stay_small(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= FILE_LINES_MAX, f"{short(path)} has {lines} lines: split it"
    functions = [node for node in ast.walk(tree_of(path)) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    long = [
        f"{short(path)}:{node.lineno} {node.name} has {size} lines"
        for node in functions
        if (size := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES_MAX
    ]
    assert long == []


def test_one_class_name_is_one_class() -> None:
    """One word, one meaning: docs/glossary.md. Who reads a name in an error or a picture need not ask whose it is."""
    where: dict[str, list[str]] = {}
    for path in SOURCE_FILES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where.setdefault(node.name, []).append(short(path))
    assert {name: paths for name, paths in where.items() if len(paths) > 1} == {}


@each(sorted({path.parent for path in SOURCE_FILES + TEST_FILES}))
def test_folders_stay_small(path: Path) -> None:
    if path in CROWDED:
        return
    count = len(list(path.glob("*.py")))
    assert count <= FOLDER_FILES_MAX, f"{count} files: a room is missing"


@each([path for path in TEST_FILES if UNIT in path.parents and path.parent != UNIT and path.name.startswith("test_")])
def test_unit_tests_mirror_the_sources(path: Path) -> None:
    """tests/unit/a/b/test_c_of_something.py tests src/weir/a/b/c.py, or the room of that name."""
    folder = PACKAGE / path.parent.relative_to(UNIT)
    assert folder.is_dir(), "there is no such room"
    name = path.stem.removeprefix("test_")
    there = [each.stem for each in folder.iterdir() if each.suffix == ".py" or each.is_dir()]
    assert any(name == module or name.startswith(f"{module}_") for module in there), "there is no such module"


# --- Habits -------------------------------------------------------------------------------------------


def texts() -> list[Path]:
    documents = [path for pattern in ("*.md", "docs/**/*.md", "scripts/*", "Makefile") for path in ROOT.glob(pattern)]
    return ALL_FILES + sorted(path for path in documents if path.is_file() and path.suffix != ".py")


@each(texts())
def test_nothing_is_left_for_later_in_a_comment(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [f"{short(path)}:{number}" for number, line in enumerate(lines, 1) if UNFINISHED.search(line)] == []


@each(TEST_FILES)
def test_tests_do_not_sleep(path: Path) -> None:
    """Poll with a deadline (the `eventually` fixture), or own the clock."""
    calls = [node for node in ast.walk(tree_of(path)) if isinstance(node, ast.Call)]
    slept = [node.lineno for node in calls if ast.unparse(node.func) in ("time.sleep", "sleep")]
    assert slept == []


@each(ALL_FILES)
def test_no_error_is_swallowed_in_silence(path: Path) -> None:
    """Catching everything and doing nothing hides our own bugs; catch the one error that is expected."""
    handlers = [node for node in ast.walk(tree_of(path)) if isinstance(node, ast.ExceptHandler)]
    swallowing = [
        f"{short(path)}:{node.lineno}"
        for node in handlers
        if (node.type is None or ast.unparse(node.type) in ("Exception", "BaseException"))
        and all(isinstance(statement, ast.Pass) or is_nothing(statement) for statement in node.body)
    ]
    assert swallowing == []


def is_nothing(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
