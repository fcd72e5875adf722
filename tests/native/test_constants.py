"""Constants that both row paths have: the crate's are those of the Python modules that its modules are the twins of."""

from __future__ import annotations

import importlib
import math
import re
from typing import Any, Final

from cdc.protocol.constants import Flag, Key, Type
from tests.test_architecture import CRATE, twins

_CONSTANT: Final = re.compile(r"^(?:pub )?const (\w+): ([^=;]+) =\s+(.+?);", re.MULTILINE)

_NUMBER: Final = re.compile(r"(?:0x[0-9a-f_]+|[0-9][0-9_.e]*)(?: (?:\*|<<) [0-9_]+)*")

OTHER_NAMES: Final = {
    ("limbo", "SYSTEM_SPACE_MAX"): "cdc.protocol.system_spaces.SYSTEM_SPACE_MAX",
    ("codec", "ORIGIN_END"): "cdc.positions.vclock.VCLOCK_MAX",
    ("extensions", "UINT64_END"): "cdc.schema.keys._UINT64_END",
}
"""By module and constant of the crate: the constant in Python, if it has another name or place."""

OWN: Final = {
    ("arithmetic", "DIGITS_MAX"): "shorter than in the twin: other decimals are handed back",
    ("update", "OPERATIONS_MAX"): "fewer than in the twin: requests with more are handed back",
    ("json_values", "LEVELS_MAX"): "fewer than in Python: deeper values are handed back",
    ("json_values", "CYCLE_DAYS"): "in days, not in seconds",
}
"""Constants with a meaning of their own, and why."""


def constants(name: str) -> dict[str, Any]:
    """The constants of a module of the crate whose values are numbers or bytes."""
    found = {}
    for constant, kind, text in _CONSTANT.findall(CRATE[name]):
        if kind == "&[u8]":
            is_raw = text.startswith("br#")
            found[constant] = text[4:-2].encode() if is_raw else text[2:-1].encode().decode("unicode_escape").encode()
        elif _NUMBER.fullmatch(text):
            found[constant] = number(text)
    return found


def number(text: str) -> int | float:
    """The value of a number, a product of numbers, or a shifted number."""
    base, _, shift = text.partition("<<")
    if not text.startswith("0x") and re.search("[.e]", text):
        return float(text)
    return math.prod(int(factor, 0) for factor in base.split("*")) << int(shift or 0)


def counterpart(module: str, constant: str, twin: Any) -> Any:
    """The value in Python, None if there is none."""
    name = OTHER_NAMES.get((module, constant), constant)
    if "." in name:
        place, _, name = name.rpartition(".")
        twin = importlib.import_module(place)
    value = getattr(twin, name, getattr(twin, f"_{name}", None))
    return value[0] if isinstance(value, bytes) and len(value) == 1 else value


def test_the_protocols_numbers_are_the_same() -> None:
    found = constants("constants")
    assert len(found) > 20
    assert {name: [vars(place).get(name) for place in (Key, Type, Flag) if name in vars(place)] for name in found} == {
        name: [value] for name, value in found.items()
    }


def test_the_protocols_numbers_stand_in_one_module() -> None:
    names = {name for place in (Key, Type, Flag) for name in vars(place) if name.isupper()}
    elsewhere = {(name, one) for name in CRATE if name != "constants" for one in constants(name)}
    assert not {place for place in elsewhere if place[1] in names}


def test_constants_are_those_of_the_twins() -> None:
    compared = set()
    for name, twin in twins().items():
        if not twin or name == "constants":
            continue
        python = importlib.import_module(twin)
        for constant, value in constants(name).items():
            if (name, constant) in OWN:
                continue
            expected = counterpart(name, constant, python)
            if expected is not None:
                assert value == expected, f"{constant} of {name}.rs"
                compared.add((name, constant))
    assert compared >= set(OTHER_NAMES)
    assert compared >= {("keys", "KEY_BYTES_MAX"), ("extensions", "EXT_UUID"), ("avro_values", "PRESENT"), ("murmur2", "SEED")}
    assert len(compared) > 20
