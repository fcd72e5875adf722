"""The state store against a plain dict, and against what happens to processes, disks and machines."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import random
import re
import resource
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import lmdb
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cdc.errors import StateError, StateLostError
from cdc.images.pending import CLEAR, Change
from cdc.schema.keys import space_prefix
from cdc.store import files
from cdc.store import store as module
from cdc.store.files import daemon_named, is_held_by_daemon, is_locked, set_aside, translate_lmdb_errors
from cdc.store.spool import FileSpool
from cdc.store.store import StateStore
from tests.fakes.profiles import examples

STORE_FILES = {"data.mdb", "lock.mdb", "condition", "owner.lock"}
SPACES = [1, 512, 513]
KEYS = st.builds(lambda space, rest: space_prefix(space) + rest, st.sampled_from(SPACES), st.binary(max_size=2))
CHANGES = st.one_of(
    st.tuples(KEYS, st.binary(min_size=1, max_size=5)),
    st.tuples(KEYS, st.none()),
    st.tuples(st.sampled_from([space_prefix(space) for space in SPACES]), st.just(CLEAR)),
)
RECORDS = st.tuples(st.binary(min_size=1, max_size=2), st.none() | st.binary(max_size=3))


def key(number: int, space_id: int = 513) -> bytes:
    return space_prefix(space_id) + number.to_bytes(4, "big")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    """A new one, closed after the test."""
    opened = StateStore(tmp_path / "state", daemon_named("shop"))
    yield opened
    opened.close()


def test_a_lock_whose_file_a_cleaner_removes(store: StateStore, tmp_path: Path) -> None:
    """tmpreaper and the like remove old files of a directory that is in use."""
    path = tmp_path / "state"
    (path / "owner.lock").unlink()
    assert is_locked(path)
    assert is_held_by_daemon(path, "shop")
    for _ in range(2):
        with pytest.raises(StateError, match=r"in use by a running daemon\. Stop that one first"):
            StateStore(path)
    assert not (path / "owner.lock").exists(), "a file that nobody has locked would say that nobody has the store"
    store.close()
    assert not is_locked(path)
    StateStore(path).close()


def test_a_file_system_that_locks_no_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS locks only files that are open for writing. The lock of the file is enough, as it was in older versions."""
    flock = fcntl.flock

    def refuse_directories(descriptor: int, operation: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", refuse_directories)
    store = StateStore(tmp_path, daemon_named("shop"))
    assert is_locked(tmp_path)
    with pytest.raises(StateError, match="in use by the daemon 'shop'"):
        StateStore(tmp_path)
    store.close()
    assert not is_locked(tmp_path)


@contextmanager
def small_slices() -> Iterator[None]:
    """So that small writes go the way of large ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SLICE_CHANGES", 2)
        yield


class Model(RuleBasedStateMachine):
    """Random writes and reopenings; all that can be read is that of a dict."""

    def __init__(self) -> None:
        super().__init__()
        self._slices = small_slices()
        self._slices.__enter__()
        self.path = Path(subprocess.run(["mktemp", "-d"], capture_output=True, text=True, check=True).stdout.strip())
        self.store = StateStore(self.path)
        self.rows: dict[bytes, bytes] = {}
        self.records: dict[bytes, bytes] = {}
        self.seen: set[bytes] | None = None

    @rule(changes=st.lists(CHANGES, max_size=8), records=st.lists(RECORDS, max_size=2))
    def write(self, changes: list[Change], records: list[tuple[bytes, bytes | None]]) -> None:
        self.store.write(iter(changes), iter(records))
        for where, value in changes:
            if value is None:
                self.rows.pop(where, None)
            elif value == CLEAR:
                self.rows = {key: row for key, row in self.rows.items() if key[:4] != where}
            else:
                self.rows[where] = value
        for where, value in records:
            self.records.pop(where, None)
            if value is not None:
                self.records[where] = value

    @rule()
    def open_again(self) -> None:
        self.store.close()
        self.store = StateStore(self.path)
        self.seen = None

    @rule()
    def settle(self) -> None:
        self.store.sync()

    @rule()
    def begin_mark(self) -> None:
        self.store.begin_mark()
        self.seen = set()

    @precondition(lambda self: self.seen is not None)
    @rule(keys=st.lists(KEYS, max_size=5))
    def add_marks(self, keys: list[bytes]) -> None:
        assert self.seen is not None
        self.store.add_marks(keys)
        self.seen.update(keys)

    @rule()
    def end_mark(self) -> None:
        self.store.end_mark()
        self.seen = None

    @rule(after=KEYS)
    def scan_from(self, after: bytes) -> None:
        space_id = int.from_bytes(after[:4], "big")
        assert list(self.store.scan(space_id, after)) == [row for row in self._sorted(space_id) if row[0] > after]

    @rule(where=KEYS)
    def get(self, where: bytes) -> None:
        assert self.store.get(where) == self.rows.get(where)

    @invariant()
    def is_the_dict(self) -> None:
        assert self.store.records == self.records
        assert self.store.row_count == len(self.rows)
        assert self.store.space_ids() == sorted({int.from_bytes(key[:4], "big") for key in self.rows})
        for space_id in SPACES:
            rows = self._sorted(space_id)
            assert list(self.store.scan(space_id)) == rows
            assert self.store.count(space_id) == len(rows)
            if self.seen is not None:
                assert list(self.store.unmarked(space_id)) == [row for row in rows if row[0] not in self.seen]

    def _sorted(self, space_id: int) -> list[tuple[bytes, bytes]]:
        return sorted(row for row in self.rows.items() if row[0][:4] == space_prefix(space_id))

    def teardown(self) -> None:
        self.store.close()
        self._slices.__exit__(None, None, None)
        shutil.rmtree(self.path)


TestModel = Model.TestCase
TestModel.settings = examples(60, steps=20)


def test_large_writes_and_clears(store: StateStore) -> None:
    count = 3 * module.SLICE_CHANGES + 5
    numbers = list(range(count))
    random.Random(1).shuffle(numbers)
    store.write(((key(number), b"a%d" % number) for number in numbers), [(b"position", b"1")])
    store.write([(key(1, 514), b"other")], [])
    assert (store.count(513), store.row_count, store.get(key(7))) == (count, count + 1, b"a7")
    store.write([(key(7), b"before"), (space_prefix(513), CLEAR), (key(8), b"after")], [(b"position", b"2")])
    assert list(store.scan(513)) == [(key(8), b"after")]
    assert (store.count(513), store.space_ids(), store.records) == (1, [513, 514], {b"position": b"2"})


def test_a_scan_sees_its_moment(store: StateStore) -> None:
    store.write([(key(number), b"old") for number in range(10)], [])
    rows = store.scan(513)
    store.write([(space_prefix(513), CLEAR), (key(3), b"new")], [])
    assert [value for _, value in rows] == [b"old"] * 10
    assert list(store.scan(513, key(2))) == [(key(3), b"new")]
    assert list(store.scan(513, key(3))) == []


def test_seen_keys_are_those_of_one_snapshot(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    store.write([(key(1), b"a"), (key(2), b"b")], [])
    store.begin_mark()
    store.add_marks([key(1)])
    store.close()
    store = StateStore(tmp_path)
    with pytest.raises(AssertionError):
        store.unmarked(513)
    store.begin_mark()
    assert [found for found, _ in store.unmarked(513)] == [key(1), key(2)]
    store.close()


WRITER = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from cdc.schema.keys import space_prefix
    from cdc.store.store import CLEAR, StateStore
    store = StateStore(Path(sys.argv[1]))
    prefix = space_prefix(513)
    generation = int(store.records.get(b"generation", b"0"))
    print("open", flush=True)
    while True:
        generation += 1
        text = b"%d" % generation
        changes = [(prefix + b"%d" % number, text) for number in range(20_000 if generation % 3 else 500)]
        store.write([(prefix, CLEAR), *changes], [(b"generation", text)])
    """
)


def test_what_a_killed_process_leaves_is_one_write(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    last = kills = 0
    # On a machine that is slow just now a process may be killed before it has written anything.
    while kills < 12 or (last <= 3 and kills < 100):
        kills += 1
        with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(dice.uniform(0.0, 0.5))
            writer.send_signal(signal.SIGKILL)
        store = StateStore(tmp_path)
        text = store.records.get(b"generation", b"0")
        rows = list(store.scan(513))
        if int(text):
            assert {value for _, value in rows} == {text}
            assert len(rows) == store.count(513) == (20_000 if int(text) % 3 else 500)
        assert int(text) >= last
        last = int(text)
        store.close()
    assert last > 3


def unclosed(path: Path) -> None:
    """A store that holds a row, as a killed process leaves it."""
    program = (
        "import os, sys, pathlib; from cdc.store.store import StateStore; store = StateStore(pathlib.Path(sys.argv[1])); "
        "store.write([(b'\\0\\0\\2\\1a', b'x')], []); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", program, str(path)], check=True)


def test_a_store_that_was_not_closed_is_lost_with_the_boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unclosed(tmp_path)
    monkeypatch.setattr(files, "boot_id", lambda: "another")
    with pytest.raises(StateLostError, match=r"was not closed, and the machine has been started since.*rebuilt"):
        StateStore(tmp_path)
    monkeypatch.undo()
    store = StateStore(tmp_path)
    assert store.get(b"\0\0\2\1a") == b"x"
    store.close()


def test_where_boots_have_no_names_only_closed_stores_are_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_BOOT_ID", tmp_path / "missing")
    store = StateStore(tmp_path / "state")
    store.write([(key(1), b"a")], [])
    store.close()
    StateStore(tmp_path / "state").close()
    unclosed(tmp_path / "other")
    with pytest.raises(StateLostError):
        StateStore(tmp_path / "other")


def test_a_settled_store_outlives_the_boot(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    store.write([(key(1), b"a")], [])
    store.sync()
    assert (tmp_path / "condition").read_text() == f"clean {store.size_bytes}"
    store.get(key(1))
    assert (tmp_path / "condition").read_text().startswith("clean")
    store.write([(key(2), b"a")], [])
    assert (tmp_path / "condition").read_text() == f"unsynced {files.boot_id()}"
    store.close()
    for _ in range(3):
        store = StateStore(tmp_path)
        store.close()
        assert (tmp_path / "condition").read_text().startswith("clean")


def test_a_sync_that_fails_loses_the_store(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    store.write([(key(1), b"a")], [])

    class Failing:
        def __init__(self, environment: Any) -> None:
            self.close = environment.close

        def sync(self, _: bool) -> None:
            raise lmdb.Error("Input/output error")

    store._environment = Failing(store._environment)  # type: ignore[assignment]
    with pytest.raises(StateError, match="Input/output error"):
        store.close()
    with pytest.raises(StateLostError, match="failed to take"):
        StateStore(tmp_path)


def test_two_daemons(store: StateStore, tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"in use by the daemon 'shop', process \d+\. Stop that one first"):
        StateStore(tmp_path / "state")
    with pytest.raises(StateError, match="in use by the daemon 'shop'"):
        set_aside(tmp_path / "state")
    # An older version's lock has a number and nothing else.
    (tmp_path / "state" / "owner.lock").write_text("42\n")
    assert is_held_by_daemon(tmp_path / "state", "shop")
    with pytest.raises(StateError, match=r"in use by a running daemon, process 42\."):
        StateStore(tmp_path / "state")
    store.write([(key(1), b"a")], [])


@contextmanager
def umask(mask: int) -> Iterator[None]:
    """Of this process."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def modes(path: Path) -> dict[str, str]:
    """Of a directory and all that is in it, by path."""
    return {str(place.relative_to(path.parent)): f"{place.stat().st_mode & 0o7777:04o}" for place in (path, *path.rglob("*"))}


@contextmanager
def another_user(closed: Path) -> Iterator[None]:
    """For a while this process may not look into a directory: as somebody else if it is root, else by the directory's mode."""
    if os.geteuid() == 0:
        os.seteuid(65534)
        try:
            yield
        finally:
            os.seteuid(0)
    else:
        closed.chmod(0)
        try:
            yield
        finally:
            closed.chmod(files.DIRECTORY_MODE)


def test_another_user_is_told_whose_the_store_is(tmp_path: Path) -> None:
    path = tmp_path / "state" / "images"
    StateStore(path).close()
    assert files.is_there(path)
    assert files.has_data(path)
    for look in (files.is_there, files.has_data):
        with (
            another_user(path),
            pytest.raises(StateError, match=r"the state store .* belongs to the user .*, and this is ") as raised,
        ):
            look(path)
        assert "change the owner" in raised.value.hint


@pytest.mark.parametrize("mask", [0, 0o022])
def test_nobody_else_may_read_a_store(tmp_path: Path, mask: int) -> None:
    with umask(mask):
        unclosed(tmp_path / "state" / "images")
        set_aside(tmp_path / "state" / "images")
        with closing(StateStore(tmp_path / "state" / "images")) as opened:
            opened.write([(key(number), b"tuple") for number in range(module.SLICE_CHANGES + 1)], [(b"a", b"b")])
            spool = FileSpool(tmp_path / "spooled")
            spool.append(b"tuples")
            found = modes(tmp_path / "state")
    assert {name for name, mode in found.items() if mode == "0700"} == {"state", "state/images", "state/images/lost"}
    files = {name.removeprefix("state/images/") for name, mode in found.items() if mode == "0600"}
    assert files == {*STORE_FILES, "lost/data.mdb", "lost/lock.mdb", "lost/condition"}
    assert len(found) == 3 + len(files)
    assert modes(tmp_path / "spooled") == {"spooled": "0700"}, "the file itself has no name"


def test_a_store_that_was_open_to_others_is_closed_to_them(tmp_path: Path) -> None:
    path = tmp_path / "images"
    StateStore(path).close()
    set_aside(path)
    StateStore(path).close()
    for place in (path, *path.rglob("*")):
        place.chmod(0o2755 if place.is_dir() else 0o664)
    with closing(StateStore(path)):
        assert set(modes(path).values()) == {"2700", "0600"}


def test_a_store_that_belongs_to_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "images"
    StateStore(path).close()
    path.chmod(0o755)

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "chmod", refuse)
    with pytest.raises(StateError, match=r"mode 0755.*chown -R"):
        StateStore(path)
    monkeypatch.undo()
    StateStore(path).close()


def test_another_version(tmp_path: Path) -> None:
    StateStore(tmp_path).close()
    with lmdb.open(str(tmp_path), max_dbs=8) as environment, environment.begin(write=True) as txn:
        txn.put(b"format", b"tarantool-cdc state 99", db=environment.open_db(b"about", txn))
    (tmp_path / "condition").write_text(f"unsynced {files.boot_id()}")
    with pytest.raises(StateError, match="written by another version"):
        StateStore(tmp_path)


def test_what_is_no_state_store(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path)) as environment, environment.begin(write=True) as txn:
        txn.put(b"a", b"b")
    with pytest.raises(StateError, match="isn't a state store"):
        StateStore(tmp_path)
    (tmp_path / "condition").write_text(f"unsynced {files.boot_id()}")
    with pytest.raises(StateError, match="isn't a state store"):
        StateStore(tmp_path)
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(StateError, match="can't be used"):
        StateStore(file)


def read_all(path: Path) -> None:
    with translate_lmdb_errors(path):
        store = StateStore(path)
        try:
            for number in range(5000):
                store.get(key(number))
        finally:
            store._release()


@pytest.mark.parametrize("damage", ["zeroed", "cut", "condition", "pages"])
def test_a_damaged_store_is_lost(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "state"
    store = StateStore(path)
    store.write([(key(number), b"x" * 100) for number in range(5000)], [])
    store.close()
    data = path / "data.mdb"
    match damage:
        case "zeroed":
            data.write_bytes(bytes(data.stat().st_size))
        case "cut":
            data.write_bytes(data.read_bytes()[: data.stat().st_size // 2])
        case "condition":
            (path / "condition").write_text("what")
        case _:
            # As if the process had been killed: the size isn't known, and the pages behind the end are read as zeroes.
            (path / "condition").write_text(f"unsynced {files.boot_id()}")
            data.write_bytes(data.read_bytes()[: 20 * 4096])
    with pytest.raises(StateLostError, match=r"can't be trusted.*rebuilt"):
        read_all(path)
    aside = set_aside(path)
    assert (aside / "data.mdb").exists()
    store = StateStore(path)
    assert store.row_count == 0
    store.destroy()
    assert sorted(entry.name for entry in path.iterdir()) == ["lost"]


@contextmanager
def full_disk(limit: int) -> Iterator[None]:
    """Files can't grow past the limit, as on a disk without room, which the system calls by another name here."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("count", [500, 30_000])
def test_a_full_disk_leaves_the_old_contents(store: StateStore, count: int) -> None:
    old = [(key(number), b"old") for number in range(1000)]
    store.write(old, [(b"position", b"1")])
    with full_disk(store.size_bytes + 200_000), pytest.raises(StateError, match=r"can't be used.*make room"):
        store.write([(key(number), b"new" * 500) for number in range(count)], [(b"position", b"2")])
    assert list(store.scan(513)) == old
    assert (store.count(513), store.get(key(1)), store.records) == (1000, b"old", {b"position": b"1"})
    store.write([(key(1), b"new")], [(b"position", b"2")])
    assert (store.get(key(1)), store.records) == (b"new", {b"position": b"2"})


@pytest.mark.parametrize("count", [500, 30_000])
@pytest.mark.parametrize("seen", [False, True], ids=["rows", "keys of a snapshot"])
def test_a_disk_without_room(small_disk: Path, count: int, seen: bool) -> None:
    """Each error says so, also at the end and at the next start."""
    says = "couldn't be written, there is no room left on its disk.*Make room"
    store = StateStore(small_disk / "images")
    store.write([(key(number), b"old") for number in range(1000)], [])
    store.begin_mark()

    def fill() -> None:
        for start in range(0, 1_000_000, count):
            keys = [key(number) * 10 for number in range(start, start + count)]
            if seen:
                store.add_marks(keys)
            else:
                store.write([(one, b"x" * 100) for one in keys], [])

    with pytest.raises(StateError, match=says):
        fill()
    for _ in range(2):
        with contextlib.suppress(StateError):
            store.get(key(1))
        try:
            store.write([(key(number) * 11, b"x" * 100) for number in range(count)], [])
        except StateError as error:
            assert re.search(says, str(error))  # noqa: PT017 - a small write may find room
    try:
        store.close()
    except StateError as error:
        assert re.search(says, str(error))  # noqa: PT017 - likewise


@pytest.mark.parametrize("page_count", range(2, 14))
def test_a_disk_that_is_full_while_a_store_is_created(tmp_path: Path, page_count: int) -> None:
    """What is left is as good as nothing: the next start creates the store."""
    with contextlib.suppress(StateError), full_disk(page_count * 4096):
        StateStore(tmp_path / "images").close()
    with closing(StateStore(tmp_path / "images")) as found:
        found.write([(b"\0\0\2\0a", b"1")], ())
        assert found.row_count == 1


def test_a_disk_that_is_full_behind_the_commit(tmp_path: Path) -> None:
    """A large write is committed before all of it is in its place: it is then finished at the next start."""
    store = StateStore(tmp_path)
    store.write([(key(number), b"old") for number in range(1000)], [(b"position", b"1")])
    with small_slices(), pytest.MonkeyPatch.context() as patch:
        calls = []

        def failing(self: StateStore, *arguments: Any) -> Any:
            calls.append(1)
            if len(calls) == 4:
                raise lmdb.DiskError("No space left on device")
            return apply(self, *arguments)

        apply = StateStore._apply
        patch.setattr(StateStore, "_apply", failing)
        with pytest.raises(StateError, match=r"no room left on its disk.*Make room"):
            store.write([(key(number), b"new") for number in range(20)], [(b"position", b"2")])
        # Whoever asks the store that was closed by that is told why it was.
        with pytest.raises(StateError, match=r"no room left on its disk.*Make room"):
            store.get(key(1))
        with pytest.raises(StateError, match=r"no room left on its disk.*Make room"):
            store.write([], [])
    store = StateStore(tmp_path)
    assert store.records == {b"position": b"2"}
    assert [value for _, value in store.scan(513)] == [b"new"] * 20 + [b"old"] * 980
    store.close()


def test_a_process_that_may_have_little_address_space(tmp_path: Path) -> None:
    program = (
        "import resource, sys; from pathlib import Path; from cdc.store.store import StateStore; "
        "resource.setrlimit(resource.RLIMIT_AS, (4 << 30, -1)); StateStore(Path(sys.argv[1])).close()"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)


def test_a_closed_store(store: StateStore) -> None:
    store.close()
    store.close()
    for use in (lambda: store.get(b"a"), lambda: store.scan(513), lambda: store.write([], []), store.begin_mark):
        with pytest.raises(StateError, match="is closed"):
            use()


def test_a_reader_that_was_killed_holds_nothing(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    store.write([(b"\0\0\2\1a", b"\x91\x01")], [])
    program = (
        "import lmdb, sys; e = lmdb.open(sys.argv[1], readonly=True, max_dbs=8); t = e.begin(); print(1, flush=True); input()"
    )
    reader = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert reader.stdout is not None
    assert reader.stdout.readline() == "1\n"
    other = str(reader.pid)
    assert store._environment is not None
    assert other in store._environment.readers()
    reader.kill()
    reader.wait()
    store.write([(b"\0\0\2\1a", b"\x91\x02")], [])
    assert other not in store._environment.readers()
    store.close()


@pytest.mark.parametrize("below", ["file", "file/below"])
def test_a_path_that_is_a_file_is_reported_without_the_systems_error_number(tmp_path: Path, below: str) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(StateError, match=rf"can't be used: {file}.* is a file, or lies below one\. Give state\.path a directory"):
        StateStore(tmp_path / below)


def test_a_directory_that_can_not_be_created_is_reported_with_the_systems_words() -> None:
    with pytest.raises(StateError, match=r"can't be used: /proc/nope[^:]*: No such file or directory\. Give state\.path"):
        StateStore(Path("/proc/nope/state"))
