"""Transactions that are too large for memory, or too many while they wait, on disk until they can be handled."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from os import SEEK_END
from pathlib import Path
from typing import Final

from cdc.errors import ConfigurationError

CHUNK_BYTES: Final = 256 * 1024


class FileSpool:
    """An anonymous file: nothing of it is left when the process ends, however it ends."""

    def __init__(self, directory: Path) -> None:
        """Raises ConfigurationError if the directory can't be written to."""
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=directory, prefix="transaction-")  # noqa: SIM115 - close() ends it
        except OSError as error:
            raise _unusable(error) from error

    def append(self, data: bytes) -> None:
        """Add bytes at the end. Raises ConfigurationError if the disk is full."""
        try:
            self._file.seek(0, SEEK_END)
            self._file.write(data)
        except OSError as error:
            raise _unusable(error) from error

    def chunks(self) -> Iterator[bytes]:
        """All bytes again, in pieces of CHUNK_BYTES."""
        return self.part(0, sys.maxsize)

    def part(self, start: int, stop: int) -> Iterator[bytes]:
        """The bytes from offset `start` up to `stop` again, in pieces of CHUNK_BYTES; others may be read in between.

        Raises ConfigurationError if the disk has no room for the last of them, which haven't left memory before.
        """
        while start < stop:
            try:
                self._file.seek(start)
                chunk = self._file.read(min(CHUNK_BYTES, stop - start))
            except OSError as error:
                raise _unusable(error) from error
            if not chunk:
                return
            yield chunk
            start += len(chunk)

    def close(self) -> None:
        """Forget the bytes."""
        self._file.close()


def _unusable(error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"transactions over source.transaction_bytes_max can't be put on disk: {error}",
        "Give state.path a directory with room, or raise source.transaction_bytes_max.",
    )
