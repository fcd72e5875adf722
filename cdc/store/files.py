"""The files of a state store: who owns them, and whether their contents may be trusted.

    data.mdb      LMDB's file
    lock.mdb      LMDB's table of readers
    condition     what may be trusted: `clean`, all of data.mdb was on the disk when it had this size; or `unsynced`, there have
                  been commits since, under this boot of the machine; or `failed`, the disk didn't take what was written
    owner.lock    locked by the process that uses the store
    lost/         the store that was set aside last

They hold every published row, so nobody but the daemon's own user may read them, whatever the umask: 0600 in a directory of
0700. A store that an older version has left open to others is closed to them when it is opened.

A machine that stops may have written a page of a tree and not those under it, and LMDB couldn't tell. `condition` is on the
disk before the first page that isn't, so a store that is unsynced since another boot is lost.

Sources: proc(5) for boot_id; LMDB's mdb.c (mdb_env_setup_locks).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pwd
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import lmdb

from cdc.errors import StateError, StateLostError

DATA_FILE: Final = "data.mdb"
"""LMDB's own name for it."""

_READERS, _CONDITION, _LOCK, _LOST = "lock.mdb", "condition", "owner.lock", "lost"
_READERS_BYTES: Final = 16_384
_NAMES: Final = (DATA_FILE, _READERS, _CONDITION, f"{_CONDITION}.new", _LOCK)
_OPEN_TO_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
DIRECTORY_MODE: Final = stat.S_IRWXU
"""Of every directory that is made for the daemon's files."""
_FILE_MODE: Final = stat.S_IRUSR | stat.S_IWUSR
_MAP_BYTES: Final = 1 << 40
_MAP_BYTES_MIN: Final = 1 << 30
_ROOM_BYTES: Final = 1 << 20
"""With less than that a disk is full: LMDB writes many pages at once."""
_MAKE_ROOM: Final = (
    "What it holds is intact. Make room, or move the store to a disk that has some (state.path; it takes about twice the data), "
    "and start the daemon again."
)
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Of this boot of the machine; empty where the system doesn't tell, and then every boot counts as another."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def set_aside(path: Path) -> Path:
    """Move a store that can't be used into the directory `lost` beside it, in place of the one there; returns that directory.

    Raises StateError if another daemon uses the store, or the files can't be moved.
    """
    with translate_lmdb_errors(path):
        descriptor = lock(path, "a daemon that moves it out of the way")
        try:
            aside = path / _LOST
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(mode=DIRECTORY_MODE)
            for name in (DATA_FILE, _READERS, _CONDITION):
                with contextlib.suppress(FileNotFoundError):
                    (path / name).rename(aside / name)
            _sync_directory(path)
            return aside
        finally:
            os.close(descriptor)


def remove_files(path: Path) -> None:
    """Remove a store's files, but for the one that was set aside, and nothing else that is in the directory."""
    # What tells that there is a store goes last, so that nobody finds a part of one.
    for name in (DATA_FILE, _READERS, _LOCK, _CONDITION):
        (path / name).unlink(missing_ok=True)


def is_there(path: Path) -> bool:
    """Whether there is a store in the directory, or what is left of one. Changes nothing. Raises StateError if it is closed."""
    with translate_denials(path):
        return any((path / name).exists() for name in (DATA_FILE, _CONDITION, _LOST))


def has_data(path: Path) -> bool:
    """Whether there is a store in the directory that could be opened. Raises StateError if it is closed."""
    with translate_denials(path):
        return (path / DATA_FILE).exists()


@contextlib.contextmanager
def translate_denials(path: Path) -> Iterator[None]:
    """Raises StateError where this user may not look into the directory, or into one that it is in."""
    try:
        yield
    except PermissionError as error:
        # The outermost one that is closed: what is behind it can't be told.
        closed = next(
            (each for each in (*reversed(path.parents), path) if not os.access(each, os.X_OK, effective_ids=True)), path
        )
        owner, user = _user(closed.stat().st_uid), _user(os.geteuid())
        raise StateError(
            f"the state store {path} can't be looked at: {closed} belongs to the user {owner}, and this is {user}",
            f"Run this as {owner}, or make {user} the owner (chown -R {user} {closed}).",
        ) from error


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def write_condition(path: Path, text: str) -> None:
    """Put down durably what may be trusted. Raises OSError."""
    draft = path / f"{_CONDITION}.new"
    with open(draft, "w", opener=_private) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path / _CONDITION)
    _sync_directory(path)


def daemon_named(name: str) -> str:
    """How a daemon says that a directory is its own."""
    return f"the daemon {name!r}"


def lock(path: Path, holder: str) -> int:
    """Take the directory, which is made if need be, for this process until the returned descriptor is closed.

    `holder` is what others are told who find it taken. Raises StateError if another process has it or another user owns it,
    OSError if it can't be made.
    """
    for directory in (path.parent, path):
        directory.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    descriptor = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _close_to_others(path)
        _sign(descriptor, holder)
    except BlockingIOError as error:
        os.close(descriptor)
        raise in_use(path) from error
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def in_use(path: Path) -> StateError:
    """What to say to a process that finds the directory locked."""
    process, holder = _signature(path)
    return StateError(
        f"the state store {path} is in use by {holder or 'a daemon at work'}"
        f"{f', process {process}' if process.isdecimal() else ''}",
        "Stop that one first. A daemon of another name needs a state.path of its own.",
    )


def is_held_by_daemon(path: Path, name: str) -> bool:
    """Whether the one that has the directory is the daemon of this name, or one of an older version, which doesn't say."""
    return is_locked(path) and _signature(path)[1] in ("", daemon_named(name))


def _sign(descriptor: int, holder: str) -> None:
    """Leave in the lock who has it, for whoever finds it taken. A disk without room for that is no matter here."""
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n{holder}\n".encode(), 0)


def _signature(path: Path) -> tuple[str, str]:
    """The number of the process that has the directory, and what it says that it is; empty where that isn't known."""
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = (path / _LOCK).read_text("utf-8", "replace").splitlines()
    process, holder, *_ = [*lines, "", ""]
    return process, holder


def is_locked(path: Path) -> bool:
    """Whether a process has the directory. Changes nothing."""
    try:
        descriptor = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _close_to_others(path: Path) -> None:
    """Take group's and others' rights from the store's directory and files. Raises StateError if they aren't this user's."""
    for place in (path, *(path / name for name in _NAMES), path / _LOST, *(path / _LOST / name for name in _NAMES)):
        try:
            mode = stat.S_IMODE(place.lstat().st_mode)
            if mode & _OPEN_TO_OTHERS:
                place.chmod(mode & ~_OPEN_TO_OTHERS)
        except FileNotFoundError:
            continue
        except PermissionError as error:
            raise StateError(
                f"{place} can be read by others (mode {mode:04o}), and belongs to another user who alone can change that",
                f"Make the daemon's user the owner (chown -R USER {path}), or run the daemon as its owner.",
            ) from error


def _private(name: str, flags: int) -> int:
    return os.open(name, flags, _FILE_MODE)


def is_clean(path: Path) -> bool:
    """Whether all of the file is on the disk. Raises StateLostError if its contents can't be trusted."""
    try:
        word, _, detail = (path / _CONDITION).read_text().partition(" ")
    except FileNotFoundError as error:
        raise StateError(
            f"{path / DATA_FILE} isn't a state store, or a part of one: {_CONDITION} is missing beside it",
            f"Give state.path a directory of its own, or remove {path} and start once with --rebuild-state.",
        ) from error
    size = (path / DATA_FILE).stat().st_size
    if word == "clean" and detail == str(size):
        return True
    if word == "unsynced" and detail and detail == boot_id():
        return False
    why = {
        "clean": f"it had {detail} bytes when it was closed and has {size} now",
        "unsynced": "it was not closed, and the machine has been started since",
        "failed": "the disk failed to take what was written to it",
    }.get(word, f"its condition can't be read: {word!r:.100}")
    raise _lost(path, why)


def _lost(path: Path, why: str) -> StateLostError:
    return StateLostError(f"the state store {path} can't be trusted: {why}", "It has to be built anew from a snapshot.")


def open_environment(path: Path, *, is_clean: bool) -> lmdb.Environment:
    """LMDB's environment in the directory, with as large a map as this process may have. Raises what
    `translate_lmdb_errors` turns into errors."""
    _reserve(path / _READERS)
    environment = _opened(path)
    if not is_clean:
        _fill_up(path / DATA_FILE, environment)
    return environment


def _opened(path: Path) -> lmdb.Environment:
    map_bytes = _MAP_BYTES
    while True:
        try:
            return lmdb.open(
                str(path),
                map_size=map_bytes,
                max_dbs=8,
                sync=False,
                metasync=False,
                readahead=False,
                meminit=False,
                mode=_FILE_MODE,
            )
        except (lmdb.MemoryError, MemoryError):
            map_bytes //= 2
            if map_bytes < _MAP_BYTES_MIN:
                raise


def _reserve(path: Path) -> None:
    """LMDB writes its table of readers through a map: it gets its room now, where a full disk is an error."""
    with open(path, "ab", opener=_private) as file:
        os.posix_fallocate(file.fileno(), 0, _READERS_BYTES)


def _fill_up(path: Path, environment: lmdb.Environment) -> None:
    """Pages behind the file's end kill who reads them; as zeroes they are found to be no pages.

    Unused pages at the end are never written, so a good file may end before them too.
    """
    needed = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
    if path.stat().st_size < needed:
        os.truncate(path, needed)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def translate_lmdb_errors(path: Path) -> Iterator[None]:
    """Turns what LMDB and the system raise into this project's errors: StateLostError for damaged contents, StateError for the
    rest. `get` and the iterators of a store raise LMDB's own errors; who calls them puts this around the whole.
    """
    try:
        yield
    except (lmdb.CorruptedError, lmdb.InvalidError, lmdb.PageNotFoundError, lmdb.IncompatibleError) as error:
        raise _lost(path, f"it is damaged ({error})") from error
    except lmdb.VersionMismatchError as error:
        raise StateError(
            f"the state store {path} was written by another version of LMDB ({error})",
            f"Run the version that wrote it, or remove {path} and start once with --rebuild-state.",
        ) from error
    except (lmdb.Error, OSError) as error:
        if _is_full(path, error):
            raise StateError(
                f"the state store {path} couldn't be written, there is no room left on its disk", _MAKE_ROOM
            ) from error
        raise StateError(f"the state store {path} can't be used: {error}", _hint(error)) from error


def _is_full(path: Path, error: Exception) -> bool:
    """Whether the disk has no room: of what is written it often takes a part, and LMDB calls that an input/output error."""
    if isinstance(error, lmdb.DiskError):
        return True
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    try:
        return shutil.disk_usage(path).free < _ROOM_BYTES
    except OSError:
        return False


def _hint(error: Exception) -> str:
    if isinstance(error, PermissionError | lmdb.ReadonlyError | FileExistsError | NotADirectoryError | FileNotFoundError):
        return "Give state.path a directory that the daemon may write to."
    return "See in the system's log what is wrong with its disk, make room if there is little, and start the daemon again."
