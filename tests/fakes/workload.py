"""Random changes on a fake master: rows, transactions, DDL, changes of other members, all from one seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from cdc.protocol.extensions import Datetime, Interval
from tests.fakes.master import Master

FIELDS: Final[list[Any]] = [
    {"name": "id", "type": "unsigned"},
    {"name": "name", "type": "string", "is_nullable": True},
    {"name": "n", "type": "number", "is_nullable": True},
    {"name": "any", "type": "any", "is_nullable": True},
]
_PART: Final = ((0, "unsigned"),)
_KEYS: Final = 6
_SPACES_MAX: Final = 5


def value(rng: random.Random, depth: int = 0) -> Any:
    """Any value that a tuple can hold and an event can show."""
    match rng.randrange(17 if depth < 2 else 13):
        case 0:
            return None
        case 1:
            return rng.random() < 0.5
        case 2:
            return rng.choice([0, -1, 2**53 + 1, 2**64 - 1, -(2**63)])
        case 3:
            return rng.choice([0.5, -0.0, 1e300, float("inf"), float("-inf")])
        case 4:
            return rng.choice(["", "x", 'quote " and \\', "\x00\x1f\u2028", "ключ", "\U0001f600", "\udcff\udc80a"])
        case 5:
            return rng.randbytes(rng.randint(0, 5))
        case 6:
            return Decimal(rng.choice(["0.000", "-12.50", "1E+3", "12345678901234567890.123"]))
        case 7:
            return UUID(int=rng.getrandbits(128))
        case 8:
            return Datetime(rng.randint(-(2**40), 2**40), rng.choice([0, 1, 999_999_999]), rng.choice([0, 180, -90]))
        case 9:
            return Interval(
                year=rng.randint(-2, 2), day=rng.randint(-2, 2), second=rng.randint(-2, 2), nanosecond=rng.randint(-2, 2)
            )
        case 10 | 11 | 12:
            return rng.randint(-1000, 1000)
        case 13 | 14:
            return [value(rng, depth + 1) for _ in range(rng.randint(0, 3))]
        case 15:
            return {str(number): value(rng, depth + 1) for number in range(rng.randint(0, 3))}
        case _:
            return {number: value(rng, depth + 1) for number in range(rng.randint(0, 3))}


class Workload:
    """Steps of random changes. `simple` leaves out what a consumer can't follow by patches alone. With `ranges`, many rows may be
    deleted by one request, as by servers from 3.9 on.
    """

    def __init__(self, master: Master, rng: random.Random, *, simple: bool = False, ranges: bool = False) -> None:
        self._master = master
        self._requests = ["insert", "replace", "delete", "update", "upsert", "nop"] + ["range"] * ranges
        self._rng = rng
        self._simple = simple
        self._number = 0
        self._names: list[str] = []
        self._bare: list[str] = []  # these have no primary key
        self._widths: dict[str, int] = {}
        self._in_transaction = False
        for _ in range(2):
            self._create()

    @property
    def names(self) -> list[str]:
        """The spaces that are there."""
        return list(self._names)

    def run(self, count: int) -> None:
        """That many steps."""
        for _ in range(count):
            self._step()

    def _step(self) -> None:
        rng = self._rng
        if rng.random() < 0.15:
            self._master.origin = rng.choice([1, 1, 2, 3])
        if rng.random() < 0.35:
            self._transaction()
        elif rng.random() < 0.15:
            self._definition()
        else:
            self._change()

    def _transaction(self) -> None:
        self._master.begin()
        for _ in range(self._rng.choice([1, 2, 3, 6])):
            if self._rng.random() < 0.05:
                self._definition()
            else:
                self._change()
        if self._master._open == []:
            self._master.nop()
        if self._master.version < (2, 8, 4) and self._rng.random() < 0.3:
            self._master.commit_unseen()
        else:
            self._master.commit()

    def _change(self) -> None:
        rng, master = self._rng, self._master
        space = rng.choice(self._names)
        key = rng.randrange(_KEYS)
        match rng.choice(self._requests):
            case "insert":
                present = {row[0] for row in master.contents(space)}
                free = [number for number in range(_KEYS) if number not in present]
                if free:
                    master.insert(space, rng.choice(free), *self._rest(space))
            case "replace":
                master.replace(space, key, *self._rest(space))
            case "delete":
                master.delete(space, key)
            case "update":
                master.update(space, [key], *self._operations(), base=rng.choice([0, 1]) if not self._simple else 1)
            case "upsert":
                master.upsert(space, [key, "up", 5], *self._operations())
            case "range":
                master.delete_range(space, rng.choice([[], [key]]), rng.choice([[], [rng.randrange(key, _KEYS + 1)]]))
            case _ if rng.random() < 0.3:
                master.nop()

    def _rest(self, space: str) -> list[Any]:
        rng = self._rng
        name = rng.choice(["a", "b", "\udcfe", 'c"'])
        if self._simple:
            return [name, rng.randint(0, 99), *(value(rng) for _ in range(self._widths[space] - 3))]
        return [name, rng.choice([1, 2.5]), *(value(rng) for _ in range(rng.randint(0, self._widths[space])))][
            : rng.randint(0, 9)
        ]

    def _operations(self) -> list[list[Any]]:
        rng = self._rng
        if self._simple:
            return [["=", "name", rng.choice(["x", "y"])], *([["+", 3, rng.randint(1, 5)]] if rng.random() < 0.5 else [])]
        choices: list[list[Any]] = [
            ["=", "name", value(rng)],
            ["=", 2, value(rng)],
            ["+", "n", 1],
            ["-", 3, 2.5],
            ["!", 2, value(rng)],
            ["!", -1, 1],
            ["#", 3, 1],
            [":", "name", 1, 1, "z"],
            ["=", "any.a[1]", value(rng)],
            ["&", 3, 7],
        ]
        return rng.sample(choices, rng.randint(1, 3))

    def _definition(self) -> None:
        rng, master = self._rng, self._master
        space = rng.choice(self._names)
        choices: list[Callable[[], None]] = [lambda: master.truncate(space), self._create]
        if not self._simple:
            choices += [
                lambda: self._format(space),
                lambda: self._rename(space),
                lambda: master.create_index(space, [[1, "string"]], index_id=1, name="second"),
                lambda: master.create_sequence(rng.randrange(9), "s"),
                self._restore,
            ]
        if len(self._names) > 1:
            choices.append(lambda: self._drop(space))
            if not self._simple:
                choices.append(lambda: self._strip(space))
        rng.choice(choices)()

    def _create(self) -> None:
        if len(self._names) >= _SPACES_MAX:
            return
        self._number += 1
        name = f"space {self._number}"
        self._master.create_space(name, FIELDS, _PART)
        self._names.append(name)
        self._widths[name] = len(FIELDS)

    def _drop(self, space: str) -> None:
        self._master.drop(space)
        self._names.remove(space)

    def _strip(self, space: str) -> None:
        """Without a primary key it has no rows, and goes on having a name and a format."""
        self._master.drop_index(space, 0)
        self._names.remove(space)
        self._bare.append(space)

    def _restore(self) -> None:
        """Give one its primary key again, under another name or in another format perhaps, and its name to another one."""
        if not self._bare or len(self._names) >= _SPACES_MAX:
            return
        former = name = self._bare.pop()
        if self._rng.random() < 0.6:
            self._number += 1
            name = f"space {self._number}"
            self._master.rename(former, name)
            self._widths[name] = self._widths[former]
            self._master.create_space(former, FIELDS, _PART)
            self._widths[former] = len(FIELDS)
            self._names.append(former)
        if self._rng.random() < 0.5:
            self._format(name)
        self._master.create_index(name, _PART)
        self._names.append(name)

    def _rename(self, space: str) -> None:
        self._number += 1
        name = f"space {self._number}"
        self._master.rename(space, name)
        self._names[self._names.index(space)] = name
        self._widths[name] = self._widths[space]

    def _format(self, space: str) -> None:
        width = self._rng.randint(4, 7)
        more = [{"name": f"more {number}", "type": "any", "is_nullable": True} for number in range(width)]
        self._master.format(space, [*FIELDS, *more][:width])
