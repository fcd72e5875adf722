"""One module per command of the command line."""

from __future__ import annotations

from collections.abc import Callable

Say = Callable[[str], object]
"""Prints a line."""
