"""Golden files for the tests of this directory."""

from __future__ import annotations

from tests.fakes.golden import golden_fixture

__all__ = ["golden_fixture"]
