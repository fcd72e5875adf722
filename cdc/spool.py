"""A transaction that is too large for memory, on disk until its end has arrived."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cdc.errors import ConfigurationError

CHUNK_BYTES: Final = 256 * 1024


class FileSpool:
    """An anonymous file: nothing of it is left when the process ends, however it ends."""

    def __init__(self, directory: Path) -> None:
        """Raises ConfigurationError if the directory can't be written to."""
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=directory, prefix="transaction-")  # noqa: SIM115 - close() ends it
        except OSError as error:
            raise _unusable(error) from error

    def append(self, data: bytes) -> None:
        """Add bytes at the end. Raises ConfigurationError if the disk is full."""
        try:
            self._file.write(data)
        except OSError as error:
            raise _unusable(error) from error

    def chunks(self) -> Iterator[bytes]:
        """All bytes again, in pieces of CHUNK_BYTES."""
        self._file.seek(0)
        while chunk := self._file.read(CHUNK_BYTES):
            yield chunk

    def close(self) -> None:
        """Forget the bytes."""
        self._file.close()


def _unusable(error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"a transaction over source.transaction_bytes_max can't be put on disk: {error}",
        "Give state.path a directory with room, or raise source.transaction_bytes_max.",
    )
