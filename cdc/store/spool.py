"""Spool on disk for waiting transactions that are too large, or too many, for memory."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from os import SEEK_END
from pathlib import Path
from typing import Final

from cdc.errors import ConfigurationError

CHUNK_BYTES: Final = 256 * 1024


class FileSpool:
    """Spool in an anonymous file, which disappears when the process ends, however it ends."""

    def __init__(self, directory: Path) -> None:
        """Create the file. Raises ConfigurationError if the directory can't be written to."""
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=directory, prefix="transaction-")  # noqa: SIM115 - close() ends it
        except OSError as error:
            raise _unusable(error) from error

    def append(self, data: bytes) -> None:
        """Append bytes. Raises ConfigurationError if the disk is full."""
        try:
            self._file.seek(0, SEEK_END)
            self._file.write(data)
        except OSError as error:
            raise _unusable(error) from error

    def chunks(self) -> Iterator[bytes]:
        """Read all bytes, in chunks of CHUNK_BYTES."""
        return self.part(0, sys.maxsize)

    def part(self, start: int, stop: int) -> Iterator[bytes]:
        """Read the bytes from offset `start` up to `stop`, in chunks of CHUNK_BYTES. Other reads may take place in between.

        Raises ConfigurationError if the disk has no room for the last bytes, which may still be in a memory buffer.
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
        """Discard the bytes."""
        # Closing the file writes what is still in the buffer, for which a full disk has no room; the file is closed all the same.
        with contextlib.suppress(OSError):
            self._file.close()


def _unusable(error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"transactions over source.transaction_bytes_max can't be put on disk: {error}",
        "Give state.path a directory with room, or raise source.transaction_bytes_max.",
    )
