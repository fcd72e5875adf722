"""Settings that the tests of the compiled row path share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cdc import native
from cdc.stream.batches import compiled_rows

_COMPARED = ("tests.stream.batches.test_compiled_rows", "tests.stream.test_compiled_images")


@pytest.fixture(params=["native", "python"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Either row path."""
    if request.param == "python":
        monkeypatch.setattr(compiled_rows, "_new_row_path", None)
    elif native.ROW_PATH == "python":
        pytest.skip("this installation has no compiled row path, or doesn't run it")
    return str(request.param)


@pytest.fixture(scope="module", autouse=True)
def compiled_path_is_tried_at_each_transaction(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let the compiled path try each transaction again in the tests that compare both paths.

    After an uncommon transaction the daemon gives the Python path up to 1,024 transactions before it tries again. Streams of a
    dozen transactions would otherwise be handled almost only by the Python path, and the comparison would prove little.
    """
    with pytest.MonkeyPatch.context() as patch:
        if request.module.__name__ in _COMPARED:
            patch.setattr("cdc.stream.compiled_stream.HANDED_BACK_MAX", 1)
        yield
