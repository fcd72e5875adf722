"""The shape of the project, computed from its files: who may import whom, what the core must not touch, how long files get.

The folders are the layers. A package that is added has to be put into the order here; a module goes into a package, and is bound
by that package's place.
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.xdist_group("sources")
"""One process reads them all, rather than each of them."""

PURE: Final = [
    "cdc.errors",
    "cdc.positions",
    "cdc.protocol",
    "cdc.tuples",
    "cdc.upstream",
    "cdc.schema",
    "cdc.events",
    "cdc.formats",
    "cdc.images",
    "cdc.stream",
]
"""What decides: no socket, clock, thread, log or randomness."""

SHELL: Final = [
    "cdc.config",
    "cdc.log",
    "cdc.registry",
    "cdc.sources",
    "cdc.store",
    "cdc.kafka",
    "cdc.ops",
    "cdc.daemon",
    "cdc.commands",
    "cdc.cli",
    "cdc.__main__",
]
ORDER: Final = ["cdc", "cdc.errors", "cdc.native", *PURE[1:], *SHELL]
"""Packages, and modules beside them. Each may import only what stands before it, and itself."""

STREAM_ORDER: Final = [
    "cdc.stream.transactions",
    "cdc.stream.moves",
    "cdc.stream.batches",
    "cdc.stream.snapshots",
    "cdc.stream",
    "cdc.stream.commits",
    "cdc.stream.reports",
]
"""The same for the folders of `cdc.stream`: rows until they are certain, buckets that move, batches of events, rows that are
published whole, the way of the stream's rows, what the publisher needs, reports."""

SPARK_ORDER: Final = [
    "spark_jobs",
    "spark_jobs.errors",
    "spark_jobs.contract",
    "spark_jobs.tables",
    "spark_jobs.runner",
    "spark_jobs.lake",
    "spark_jobs.current",
    "spark_jobs.materialize",
    "spark_jobs.history",
    "spark_jobs.audit",
    "spark_jobs.feeds",
    "spark_jobs.show",
    "spark_jobs.run",
    "spark_jobs.sequence",
    "spark_jobs.__main__",
]
"""The same for the Spark jobs: what the topics say, tables, what every job needs, and the jobs."""

SEPARATE: Final = ("cdc.local", "cdc.feeds")
"""Packages of their own: servers for the demo and the tests, and other ways out. Nothing of the core imports them."""

PURE_FEEDS: Final = [
    "cdc.feeds.tap.wire",
    "cdc.feeds.tap.keys",
    "cdc.feeds.tap.changes",
    "cdc.feeds.tap.folding",
    "cdc.feeds.tap.merging",
    "cdc.feeds.tap.session",
    "cdc.feeds.tap.window",
]
"""Of the feeds, the modules that decide."""

IMPURE: Final = {
    "asyncio",
    "confluent_kafka",
    "http",
    "io",
    "logging",
    "multiprocessing",
    "os",
    "pathlib",
    "prometheus_client",
    "pydantic",
    "queue",
    "random",
    "secrets",
    "select",
    "selectors",
    "signal",
    "socket",
    "ssl",
    "structlog",
    "subprocess",
    "sys",
    "tempfile",
    "threading",
    "time",
    "urllib",
}
CLOCKS: Final = re.compile(r"(datetime|date)\.(now|today|utcnow)\(|(open|print|input|uuid1|uuid4|uuid\.uuid[14])\(")

Documented = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef

ARROWS_MAX: Final = 106
"""A ratchet: which rooms know which. Lower it when there are fewer."""

LINES_MAX: Final = 490
"""A ratchet: lower it when files get shorter; a file that needs more has more than one subject. Docstrings don't count: a limit
must not make explanations shorter."""

METHODS_MAX: Final = 25
PARAMETERS_MAX: Final = 8
STREAM_PARAMETERS_MAX: Final = 6
"""The same for constructors of the parts of the pipeline."""
FUNCTION_LINES_MAX: Final = 60
LONGER: Final = {"cdc.ops.status.Status.to_json"}
"""The exceptions: this one is a single mapping, whose keys are the page."""
WIDER: Final = {
    "cdc.images.overlay.Images": 32,
    "cdc.store.store.StateStore": 32,
    "cdc.feeds.tap.feed.Feed": 32,
    "cdc.protocol.session.Session": 30,
}
"""Ratchets: classes with more methods, and functions with more parameters, than these limits. Lower a number when it falls."""


def modules(package: str) -> dict[str, Path]:
    """Names and files of a package's modules."""
    found = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


CDC: Final = modules("cdc")
SPARK: Final = modules("spark_jobs")


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


@functools.cache
def imports(path: Path) -> frozenset[str]:
    """Modules that a file imports, wherever it does; `from package import module` counts as the module."""
    found: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            assert node.module is not None
            submodules = {f"{node.module}.{alias.name}" for alias in node.names}
            known = {name for name in submodules if name in CDC or name in SPARK or name == COMPILED}
            found |= known
            if known != submodules:
                found.add(node.module)
    return frozenset(found)


COMPILED: Final = "cdc._native"


def ours(path: Path) -> set[str]:
    return {name for name in imports(path) if name.split(".")[0] == "cdc" and name != COMPILED}


def room(name: str) -> str:
    """The package, or the module beside the packages, that a module belongs to."""
    return ".".join(name.split(".")[:2])


def ours_of(room_name: str) -> dict[str, Path]:
    """A room's modules."""
    return {name: path for name, path in CDC.items() if room(name) == room_name}


def test_every_module_is_in_a_room_of_the_order() -> None:
    placed = {room(name) for name in CDC if not name.startswith(SEPARATE)}
    assert placed == set(ORDER), "a room that is added is put into ORDER, one that is gone is taken out"
    assert len(ORDER) == len(set(ORDER))


@pytest.mark.parametrize("name", ORDER)
def test_imports_go_one_way(name: str) -> None:
    allowed = set(ORDER[: ORDER.index(name) + 1])
    beyond = {
        f"{module} imports {used}"
        for module, path in ours_of(name).items()
        for used in ours(path)
        if room(used) not in allowed and not used.startswith(SEPARATE)
    }
    assert not beyond, f"{name} stands before what it imports"


@pytest.mark.parametrize("name", ORDER)
def test_no_room_has_a_cycle(name: str) -> None:
    left = {module: ours(path) & set(ours_of(name)) - {module} for module, path in ours_of(name).items()}
    while free := {module for module, used in left.items() if not used & set(left)}:
        left = {module: used for module, used in left.items() if module not in free}
    assert not left, "these import each other"


@pytest.mark.parametrize("name", STREAM_ORDER)
def test_imports_of_the_stream_go_one_way(name: str) -> None:
    def folder(module: str) -> str:
        return ".".join(module.split(".")[:3]) if module.count(".") > 2 else "cdc.stream"

    inside = {module: path for module, path in CDC.items() if room(module) == "cdc.stream" and path.name != "__init__.py"}
    assert {folder(module) for module in inside} == set(STREAM_ORDER)
    allowed = set(STREAM_ORDER[: STREAM_ORDER.index(name) + 1])
    mine = {module: path for module, path in inside.items() if folder(module) == name}
    assert not [
        f"{module} imports {one}"
        for module, path in mine.items()
        for one in ours(path) & set(inside)
        if folder(one) not in allowed
    ]


@pytest.mark.parametrize("name", SPARK_ORDER)
def test_imports_of_the_spark_jobs_go_one_way(name: str) -> None:
    assert {room(module) for module in SPARK} == set(SPARK_ORDER)
    allowed = set(SPARK_ORDER[: SPARK_ORDER.index(name) + 1])
    inside = {module: path for module, path in SPARK.items() if room(module) == name}
    used = {module: {one for one in imports(path) if one.startswith("spark_jobs.")} for module, path in inside.items()}
    assert not [f"{module} imports {one}" for module, ones in used.items() for one in ones if room(one) not in allowed]
    left = {module: ones & set(inside) - {module} for module, ones in used.items()}
    while free := {module for module, ones in left.items() if not ones & set(left)}:
        left = {module: ones for module, ones in left.items() if module not in free}
    assert not left, "these import each other"


def test_one_module_decides_which_row_path_runs() -> None:
    """The compiled module is there or not, and whoever imported it elsewhere would fail without it."""
    assert {name for name, path in CDC.items() if COMPILED in imports(path)} == {"cdc.native"}


CRATE: Final = {path.stem: path.read_text().partition("#[cfg(test)]")[0] for path in (ROOT / "cdc/native/src").glob("*.rs")}
"""The crate's modules, without their tests."""

RUST_FUNCTION_LINES_MAX: Final = 60
_RUST_FUNCTION: Final = re.compile(
    r"^( *)(?:[a-z]+(?:\(crate\))? |extern \"C\" )*fn (\w+)(?!.*[;}]$)(?:.*\n)*?(?=\1})", re.MULTILINE
)


def test_no_modules_of_the_crate_use_each_other() -> None:
    left = {name: set(re.findall(r"\bcrate::(\w+)", text)) & set(CRATE) - {name} for name, text in CRATE.items()}
    assert left["stream_events"] >= {"codec", "row_path"}, "the search finds what they use"
    while free := {name for name, used in left.items() if not used & set(left)}:
        left = {name: used for name, used in left.items() if name not in free}
    assert not left


def test_functions_of_the_crate_are_short() -> None:
    found = [
        (name, match[2], match[0].count("\n") + 1) for name, text in CRATE.items() for match in _RUST_FUNCTION.finditer(text)
    ]
    assert max(count for *_, count in found) > RUST_FUNCTION_LINES_MAX / 2, "the search finds their ends"
    assert len(found) > 200
    assert not [one for one in found if one[2] > RUST_FUNCTION_LINES_MAX]


def twins() -> dict[str, str]:
    """The modules of the crate, and the Python module that each is the twin of or "", from the table in the documentation."""
    table = (ROOT / "docs/architecture.md").read_text().partition("| module of the crate |")[2].partition("\n\n")[0]
    found: dict[str, str] = {}
    for line in table.splitlines()[2:]:
        names, twin, _ = line.strip("|").split("|")
        twin = twin.strip().strip("`")
        found |= {name: "" if twin.startswith("none") else twin for name in re.findall(r"`(\w+)`", names)}
    return found


def test_modules_of_the_crate_have_the_names_of_their_twins() -> None:
    found = twins()
    assert set(found) == set(CRATE) - {"lib"}
    assert not {name: twin for name, twin in found.items() if twin and (twin not in CDC or twin.split(".")[-1] != name)}


def test_arrows_between_rooms() -> None:
    arrows = {(room(module), room(used)) for module, path in CDC.items() for used in ours(path) if room(used) != room(module)}
    between = {arrow for arrow in arrows if not arrow[0].startswith(SEPARATE)}
    assert len(between) <= ARROWS_MAX


@pytest.mark.parametrize("name", PURE)
def test_the_core_is_pure(name: str) -> None:
    for module, path in ours_of(name).items():
        used = {imported.split(".")[0] for imported in imports(path)}
        assert not used & IMPURE, f"{module} imports {sorted(used & IMPURE)}"
        assert not {imported for imported in ours(path) if imported.startswith(SEPARATE)}
        calls = [ast.unparse(node) for node in ast.walk(tree(path)) if isinstance(node, ast.Call)]
        assert not [call for call in calls if CLOCKS.match(call)]


@pytest.mark.parametrize("name", PURE_FEEDS)
def test_what_decides_in_the_feeds_is_pure(name: str) -> None:
    assert not {imported.split(".")[0] for imported in imports(CDC[name])} & IMPURE
    assert ours(CDC[name]) <= {*PURE_FEEDS, "cdc.config.tap"} | {module for module in CDC if room(module) in PURE}
    assert not [
        call for node in ast.walk(tree(CDC[name])) if isinstance(node, ast.Call) and CLOCKS.match(call := ast.unparse(node))
    ]


def test_feeds_know_nothing_of_the_daemon() -> None:
    """They stand beside it: what they use is the store, Kafka and what the daemon shows of itself."""
    for name, path in CDC.items():
        if name.startswith("cdc.feeds"):
            assert not {used for used in ours(path) if room(used) in ("cdc.daemon", "cdc.sources", "cdc.local")}, name


def test_local_servers_use_only_the_errors() -> None:
    for name, path in CDC.items():
        if name.startswith("cdc.local") and name != "cdc.local.demo":
            beyond = {used for used in ours(path) if not used.startswith("cdc.local")}
            assert beyond <= {"cdc", "cdc.errors"}, f"{name} imports {sorted(beyond)}"


def test_only_the_command_line_demonstrates() -> None:
    users = {name for name, path in CDC.items() if any(used.startswith("cdc.local") for used in ours(path))}
    assert {name for name in users if not name.startswith("cdc.local")} <= {"cdc.cli"}


def test_only_the_command_line_knows_other_ways_out() -> None:
    users = {name for name, path in CDC.items() if any(used.startswith("cdc.feeds") for used in ours(path))}
    assert {name for name in users if not name.startswith("cdc.feeds")} <= {"cdc.cli"}


def test_spark_jobs_and_the_daemon_know_only_the_contract() -> None:
    for name, path in SPARK.items():
        assert not ours(path), f"{name} imports the daemon"
    for name, path in CDC.items():
        assert not {used for used in imports(path) if used.split(".")[0] == "spark_jobs"}, f"{name} imports a job"


def test_no_module_is_an_orphan() -> None:
    used = {name for path in [*CDC.values(), *SPARK.values()] for name in imports(path)}
    entries = {"cdc.__main__", "spark_jobs.__main__"}
    packages = {name for name, path in (*CDC.items(), *SPARK.items()) if path.name == "__init__.py"}
    scripts = {name for name, path in (*CDC.items(), *SPARK.items()) if "__main__" in path.read_text()}
    orphans = {*CDC, *SPARK} - used - entries - packages - scripts
    assert not orphans


def test_the_daemon_shows_its_status_and_never_reads_it() -> None:
    """A decision by what is shown would change with what is shown.

    The daemon's name may be had from it, and what Kafka's publisher fills by itself is handed on.
    """
    read = [
        f"{module}:{node.lineno}: {ast.unparse(node)}"
        for module, path in ours_of("cdc.daemon").items()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Load)
        and ast.unparse(node.value).split(".")[-1] in ("status", "_status")
        and node.attr not in ("name", "kafka")
    ]
    assert not read


# Docstrings.


def _public(node: ast.AST, prefix: str) -> Iterator[tuple[str, Documented]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Documented) and not child.name.startswith("_"):
            yield f"{prefix}.{child.name}", child
            if isinstance(child, ast.ClassDef):
                yield from _public(child, f"{prefix}.{child.name}")


@functools.cache
def _declared() -> frozenset[str]:
    """Methods that a Protocol documents: whoever implements them need not say it again."""
    return frozenset(
        method.name
        for path in CDC.values()
        for protocol in ast.walk(tree(path))
        if isinstance(protocol, ast.ClassDef) and any(ast.unparse(base).endswith("Protocol") for base in protocol.bases)
        for method in protocol.body
        if isinstance(method, Documented) and ast.get_docstring(method)
    )


# What overrides a library's method is documented there; what a test's server can do, in the interface of all of them.
INHERITED: Final = {"settings_customise_sources"}


def test_each_file_of_tests_says_what_is_tested() -> None:
    """In its first line: who reads a red test of a file they don't know begins there."""
    files = [path for path in (ROOT / "tests").rglob("test_*.py") if path.stat().st_size]
    assert [str(path.relative_to(ROOT)) for path in files if not ast.get_docstring(ast.parse(path.read_text()))] == []


def test_everything_public_has_a_docstring() -> None:
    assert [name for name in CDC if not ast.get_docstring(tree(CDC[name]))] == []
    bare = [
        where
        for name in CDC
        for where, node in _public(tree(CDC[name]), name)
        if not ast.get_docstring(node)
        and node.name not in INHERITED | _declared()
        and (not name.startswith("cdc.local") or where.count(".") == name.count(".") + 1)
    ]
    assert bare == []


# Files.


def _tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    return [ROOT / name for name in listed.decode().split("\0") if name and (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def tracked() -> list[Path]:
    """Files under version control; in an unpacked archive there are none to look at."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a clone")
    return _tracked()


def _line_count(path: Path) -> int:
    """Number of lines that aren't part of a docstring."""
    said = sum(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    )
    return len(path.read_text().splitlines()) - said


def test_files_stay_readable_in_one_sitting(tracked: list[Path]) -> None:
    long = {
        str(path.relative_to(ROOT)): count
        for path in tracked
        if path.suffix == ".py" and "tests" not in path.relative_to(ROOT).parts
        for count in (_line_count(path),)
        if count > LINES_MAX
    }
    assert not long


def _widths(node: ast.AST, prefix: str) -> Iterator[tuple[str, int, int]]:
    """Name, width and limit of each class (its methods) and function (its parameters) in a module."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            methods = [one for one in child.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
            yield f"{prefix}.{child.name}", len(methods), METHODS_MAX
            yield from _widths(child, f"{prefix}.{child.name}")
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            given = child.args
            names = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs) if one.arg not in ("self", "cls")]
            is_part = "cdc.stream" in prefix and child.name == "__init__"
            yield f"{prefix}.{child.name}", len(names), STREAM_PARAMETERS_MAX if is_part else PARAMETERS_MAX


def test_classes_and_parameter_lists_stay_small() -> None:
    found = {
        name: width
        for module, path in (*CDC.items(), *SPARK.items())
        for name, width, limit in _widths(tree(path), module)
        if width > limit
    }
    assert found == WIDER


def _function_lengths(node: ast.AST, prefix: str) -> Iterator[tuple[str, int]]:
    """Name of each function in a module, and its number of lines besides the docstring."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{prefix}.{child.name}"
            yield from _function_lengths(child, name)
            if not isinstance(child, ast.ClassDef):
                said = (ast.get_docstring(child, clean=False) or "").splitlines()
                yield name, (child.end_lineno or child.lineno) - child.lineno + 1 - len(said)


def test_functions_are_short() -> None:
    lengths = dict(one for module, path in (*CDC.items(), *SPARK.items()) for one in _function_lengths(tree(path), module))
    assert {name for name, count in lengths.items() if count > FUNCTION_LINES_MAX} == LONGER


_ROOTS: Final = "|".join(["home", "root", "Users", "work", "mnt"])
MACHINE: Final = re.compile(
    rf"(?<![\w.}}/])/(?:{_ROOTS})/[A-Za-z_]|\b[\w.-]+\.(?:internal|corp|lan)\b|--(?:extra-)?index-url[ =]", re.IGNORECASE
)
ALLOWED: Final = re.compile(r"host\.docker\.internal")


def test_no_file_knows_the_machine_that_it_was_written_on(tracked: list[Path]) -> None:
    found = []
    for path in tracked:
        data = path.read_bytes()
        if b"\0" in data or path.suffix == ".gz":
            continue
        for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
            match = MACHINE.search(line)
            if match and not ALLOWED.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {match[0]}")
    assert not found


def test_the_checks_above_can_fail(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text("import os.path\nfrom cdc.stream import pipeline, nothing\nfrom cdc.errors import CdcError\n")
    assert imports(file) == {"os.path", "cdc.stream.pipeline", "cdc.stream", "cdc.errors"}
    slash = "/"
    assert MACHINE.search(f"path = '{slash}home{slash}somebody'")
    assert MACHINE.search(f"see {slash}work{slash}main")
    assert not MACHINE.search(f"a{slash}home{slash}b and https://example.org{slash}work{slash}x")
