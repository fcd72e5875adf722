"""Files of a state store: their owner, and whether their contents can be trusted.

    data.mdb      LMDB's file
    lock.mdb      LMDB's table of readers
    condition     whether data.mdb can be trusted: `clean`: all of it was on the disk when it had this size; `unsynced`: there
                  were commits since, during this boot of the machine; `failed`: the disk failed to write it
    owner.lock    locked by the process that uses the store, and signed by it
    lost/         the store that was set aside last

The directory itself is locked, too: a cleaner of temporary files may remove owner.lock, and others could then lock a new one.
(systemd-tmpfiles leaves a locked directory's contents alone.)

The files hold every published row, so only the daemon's own user may read them, whatever the umask: mode 0600 in a directory of
mode 0700. If an older version left a store accessible to others, opening the store removes their access.

A machine that stops may have written a page of a tree but not the pages below it, and LMDB couldn't detect that. `condition` is
written to the disk before the first unsynced page, so a store that has been unsynced since another boot is lost.

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
"""LMDB's name for its data file."""

JOURNAL_PREFIX: Final = "journal-"
"""Beginning of the names of the journal's files; a number follows."""

_READERS, _CONDITION, _LOCK, _LOST = "lock.mdb", "condition", "owner.lock", "lost"
_READERS_BYTES: Final = 16_384
_NAMES: Final = (DATA_FILE, _READERS, _CONDITION, f"{_CONDITION}.new", _LOCK)
_OPEN_TO_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
DIRECTORY_MODE: Final = stat.S_IRWXU
"""Mode of every directory created for the daemon's files."""
_FILE_MODE: Final = stat.S_IRUSR | stat.S_IWUSR
_MAP_BYTES: Final = 1 << 40
_MAP_BYTES_MIN: Final = 1 << 30
_ROOM_BYTES: Final = 1 << 20
"""Free space, in bytes, below which a disk counts as full: LMDB writes many pages at once."""
_MAKE_ROOM: Final = (
    "Its contents are intact. Make room, or move the store to a disk that has some (state.path; it takes about twice the data), "
    "and start the daemon again."
)
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Return the id of this boot of the machine. Empty if the system has none; then every boot counts as another one."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def set_aside(path: Path) -> Path:
    """Move an unusable store into its subdirectory `lost`, replacing an earlier one. Return that directory.

    Raises StateError if another daemon uses the store, or the files can't be moved.
    """
    with translate_lmdb_errors(path):
        held = lock(path, "a daemon that moves it out of the way")
        try:
            aside = path / _LOST
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(mode=DIRECTORY_MODE)
            for file in journal_files(path):
                file.unlink(missing_ok=True)  # it continues the lost contents, and no others
            for name in (DATA_FILE, _READERS, _CONDITION):
                with contextlib.suppress(FileNotFoundError):
                    (path / name).rename(aside / name)
            _sync_directory(path)
            return aside
        finally:
            held.close()


def remove_files(path: Path) -> None:
    """Remove a store's files, but neither a store that was set aside nor any other file in the directory."""
    for file in journal_files(path):
        file.unlink(missing_ok=True)
    # `condition` is removed last: data.mdb without it would be refused as a part of a store.
    for name in (DATA_FILE, _READERS, _LOCK, _CONDITION):
        (path / name).unlink(missing_ok=True)


def journal_files(path: Path) -> list[Path]:
    """Return the files of a store's journal (cdc.store.journal), oldest first."""
    found = {file.name.removeprefix(JOURNAL_PREFIX): file for file in path.glob(f"{JOURNAL_PREFIX}*")}
    return [found[number] for number in sorted(filter(str.isdecimal, found), key=int)]


def is_there(path: Path) -> bool:
    """Return whether the directory has a store or remains of one. Changes nothing. Raises StateError if access is denied."""
    with translate_denials(path):
        return any((path / name).exists() for name in (DATA_FILE, _CONDITION, _LOST))


def has_data(path: Path) -> bool:
    """Return whether the directory has a store that could be opened. Raises StateError if access is denied."""
    with translate_denials(path):
        return (path / DATA_FILE).exists()


def is_denied(path: Path) -> bool:
    """Return whether this user has no access to the directory, and so can't tell what is in it."""
    try:
        has_data(path)
    except StateError:
        return True
    return False


@contextlib.contextmanager
def translate_denials(path: Path) -> Iterator[None]:
    """Raise StateError if this user has no access to the directory or to one of its parents."""
    try:
        yield
    except PermissionError as error:
        # The outermost inaccessible directory: access to the directories in it can't be determined.
        closed = next(
            (each for each in (*reversed(path.parents), path) if not os.access(each, os.X_OK, effective_ids=True)), path
        )
        owner, user = _user(closed.stat().st_uid), _user(os.geteuid())
        raise StateError(
            f"the state store {path} can't be accessed: {closed} belongs to the user {owner}, and this is {user}",
            # Another owner would take the store from the daemon that runs.
            f"Run this as {owner}. Only if the daemon itself is to run as {user} from now on, stop it and change the owner.",
        ) from error


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def write_condition(path: Path, text: str) -> None:
    """Write the store's condition durably. Raises OSError."""
    draft = path / f"{_CONDITION}.new"
    with open(draft, "w", opener=_private) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path / _CONDITION)
    _sync_directory(path)


def daemon_named(name: str) -> str:
    """Return the text by which a daemon signs the lock of its directory."""
    return f"the daemon {name!r}"


class OpenFile:
    """A file that is open, as its path shows it."""

    def __init__(self, path: Path) -> None:
        """Note which file the path has now."""
        self._path = path
        self._opened = self._id()

    @property
    def is_removed(self) -> bool:
        """Whether somebody has removed the file, or put another in its place: what it has is lost once it is closed."""
        return self._id() != self._opened

    def check(self) -> None:
        """Raise StateError if somebody has removed the file."""
        if self.is_removed:
            raise StateError(
                f"the files of the state store {self._path.parent} were removed while it was open, and what it had is lost",
                "Start once with --rebuild-state: all rows are published again, as `r`.",
            )

    def _id(self) -> tuple[int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino


class DirectoryLock:
    """This process's lock on a directory, until it is closed or the process ends."""

    def __init__(self, path: Path, holder: str) -> None:
        """Lock a directory that exists; raises as `lock` does."""
        self._descriptors: list[int] = []
        try:
            self._add(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), is_needed=False)
            self._add(os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE), is_needed=True)
            _close_to_others(path)
            _sign(self._descriptors[-1], holder)
        except BlockingIOError as error:
            self.close()
            raise in_use(path) from error
        except BaseException:
            self.close()
            raise

    def _add(self, descriptor: int, *, is_needed: bool) -> None:
        """Lock a file. Unless `is_needed`, the file system may be one that can't lock it, e.g. a directory on NFS."""
        self._descriptors.append(descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:
            if is_needed:
                raise

    def close(self) -> None:
        """Release the lock."""
        while self._descriptors:
            os.close(self._descriptors.pop())


def lock(path: Path, holder: str) -> DirectoryLock:
    """Lock the directory for this process; create the directory if needed.

    `holder` describes this process in the errors of other processes that find the directory locked. Raises StateError if
    another process holds the lock, or files that others can read belong to another user; OSError if it can't be created.
    """
    for directory in (path.parent, path):
        directory.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    return DirectoryLock(path, holder)


def in_use(path: Path) -> StateError:
    """Return the error for a process that finds the directory locked."""
    process, holder = _signature(path)
    return StateError(
        f"the state store {path} is in use by {holder or 'a running daemon'}"
        f"{f', process {process}' if process.isdecimal() else ''}",
        "Stop that one first. A daemon of another name needs a state.path of its own.",
    )


def is_held_by_daemon(path: Path, name: str) -> bool:
    """Return whether the directory is locked by the daemon of this name, or by an older version, which doesn't sign its lock."""
    return is_locked(path) and _signature(path)[1] in ("", daemon_named(name))


def holding_process(path: Path) -> int | None:
    """Return the process that has the directory locked; None if nobody has, or it is unknown."""
    process = _signature(path)[0]
    return int(process) if process.isdecimal() and is_locked(path) else None


def _sign(descriptor: int, holder: str) -> None:
    """Write the holder into the lock file, for processes that find it locked. A full disk is ignored here."""
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n{holder}\n".encode(), 0)


def _signature(path: Path) -> tuple[str, str]:
    """Return the process id of the directory's holder, and the holder's description. Empty texts if they are unknown."""
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = (path / _LOCK).read_text("utf-8", "replace").splitlines()
    process, holder, *_ = [*lines, "", ""]
    return process, holder


def is_locked(path: Path) -> bool:
    """Return whether a process holds the directory's lock. Changes nothing."""
    return _is_locked(path, os.O_RDONLY | os.O_DIRECTORY) or _is_locked(path / _LOCK, os.O_RDWR)


def _is_locked(path: Path, flags: int) -> bool:
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # a file system that can't lock it
    finally:
        os.close(descriptor)
    return False


def _close_to_others(path: Path) -> None:
    """Remove the access of group and others to the store's files. Raises StateError if those belong to another user."""
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
    """Return whether all of data.mdb is on the disk. Raises StateLostError if its contents can't be trusted."""
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
    return StateLostError(f"the state store {path} can't be trusted: {why}", "It has to be rebuilt from a snapshot.")


def open_environment(path: Path, *, is_clean: bool) -> lmdb.Environment:
    """Open LMDB's environment in the directory, with the largest map that this process may have.

    Raises the exceptions that `translate_lmdb_errors` translates.
    """
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
    """Allocate LMDB's table of readers. LMDB writes it through a memory map, where a full disk would kill the process; here a
    full disk raises an error."""
    with open(path, "ab", opener=_private) as file:
        os.posix_fallocate(file.fileno(), 0, _READERS_BYTES)


def _fill_up(path: Path, environment: lmdb.Environment) -> None:
    """Extend the file with zeros to the size that LMDB's metadata claims.

    Reading a mapped page after the file's end would kill the process, while LMDB recognizes zeros as an invalid page. An intact
    file may be shorter, too, as unused pages at its end are never written.
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
    """Translate errors of LMDB and the system: StateLostError for damaged contents, StateError for all others.

    A store's `get` and iterators raise LMDB's own errors; their callers use this context around the whole operation.
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
        raise StateError(f"the state store {path} can't be used: {_reason(error)}", _hint(error)) from error


def _reason(error: Exception) -> str:
    """Return what is wrong, in words instead of the system's error number."""
    if not isinstance(error, OSError) or error.filename is None:
        return str(error)
    if isinstance(error, FileExistsError | NotADirectoryError):
        return f"{error.filename} is a file, or lies below one"
    return f"{error.filename}: {error.strerror}"


def _is_full(path: Path, error: Exception) -> bool:
    """Return whether the disk is full. A full disk often writes only a part, which LMDB reports as an input/output error."""
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
    return "Check the system's log for errors of its disk, make room if it is nearly full, and start the daemon again."
