"""Durations as people write them."""

from __future__ import annotations

import argparse
import re
from typing import Final

_UNITS: Final = {"second": 1.0, "minute": 60.0, "hour": 3600.0}
_TEXT: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(second|minute|hour)s?")


def seconds(text: str) -> float:
    """Return the seconds of a text such as "90 seconds" or "1 minute". For `add_argument(type=…)`."""
    found = _TEXT.fullmatch(text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f'{text!r} isn\'t a duration such as "90 seconds" or "1 minute"')
    return float(found[1]) * _UNITS[found[2]]
