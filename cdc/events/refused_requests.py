"""Requests of which no event can be made from the row alone: what is said of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from cdc.errors import EncodingError, UnsupportedRowError
from cdc.protocol.codec import Body
from cdc.schema.forms import SpaceForm


def deleted_range(form: SpaceForm) -> Callable[[Body, bytes], NoReturn]:
    """Return the refusal of a DELETE_RANGE, which has two keys: only images tell which rows were between them."""

    def refuse(_: Body, __: bytes) -> NoReturn:
        raise EncodingError(
            f"a DELETE_RANGE of space {form.name!r}: without images nobody knows which rows it deleted",
            'Start once with snapshot.mode = "always": all rows are published again, and consumers sweep those that are gone '
            '(sweep_seq in <prefix>.snapshot). With images (state.images = "full", and a primary key without a collation) such '
            "requests become d events.",
        )

    return refuse


def arrow_rows(form: SpaceForm) -> Callable[[Body, bytes], NoReturn]:
    """Return the refusal of an INSERT_ARROW, whose rows are columns in Apache Arrow's form."""

    def refuse(_: Body, __: bytes) -> NoReturn:
        raise arrow_error(form)

    return refuse


def arrow_error(form: SpaceForm) -> UnsupportedRowError:
    """Return the error of such a row."""
    return UnsupportedRowError(
        f"an INSERT_ARROW into space {form.name!r}: rows in Arrow's form, as Tarantool Enterprise's engine memcs writes them, "
        "can't be read",
        "Leave the space out (spaces.exclude).",
    )
