"""What a real server takes and few expect, made from a seed: a master that is hostile, and never breaks a rule.

Spaces are called `.` and `..`, have 200 letters or other alphabets in their names, keys of every type and collation, forms of
2,000 fields and tuples of 5,000. Keys come in all the writings that the server takes for equal, rows with values that no client
library writes: MessagePack's own timestamps, numbers in longer forms than need be, strings that aren't UTF-8, and values nested
deeper than decoders go. Requests carry more body keys than they need, and in them what looks like another request.

    one_space:      a generator of one space's requests, by its kind of key
    unencodable:    rows that have no JSON, in spaces of their own: what is in `without` can only be in the dead-letter topic
"""

from __future__ import annotations

import random
import re
import struct
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final

import msgpack

from cdc.local.interface import TarantoolServer
from tests.live import raw_requests as raw
from tests.live.raw_requests import RawRequests, packed
from tests.live.waiting import wait_for

_DECIMAL: Final = 1
_UUID: Final = 2
_TIMESTAMP: Final = -1
_UNKNOWN: Final = 100

Value = bytes
"""One MessagePack value."""


def extension(code: int, data: bytes) -> Value:
    """An extension type with these bytes."""
    return packed(msgpack.ExtType(code, data)) if code >= 0 else b"\xc7" + bytes((len(data), code & 0xFF)) + data


def decimal(text: str) -> Value:
    """A decimal as the server writes it: scale, then two digits a byte, the sign last."""
    sign, digits, exponent = Decimal(text).as_tuple()
    assert isinstance(exponent, int)
    number = "".join(map(str, digits)) + "0" * max(exponent, 0) + ("d" if sign else "c")
    return extension(_DECIMAL, packed(-min(exponent, 0)) + bytes.fromhex(number if len(number) % 2 == 0 else "0" + number))


def double(number: float) -> Value:
    """Always a double, also where it is whole."""
    return b"\xcb" + struct.pack(">d", number)


def nested(levels: int, core: Value = b"\x01") -> Value:
    """Arrays in arrays."""
    return b"\x91" * levels + core


# Keys. Each pool holds values that the server takes for equal in several writings, so that requests meet.

_WHOLE: Final = [packed(number) for number in (0, 1, 2, 127, 128, 2**32, 2**53, 2**53 + 1, 2**63 - 1)]
# In an index of `unsigned` 2.6 compares bytes: one number in two writings is two rows there, and no other comparison agrees.
_UNSIGNED: Final = [*_WHOLE, packed(2**64 - 1)]
_INTEGERS: Final = [
    *_UNSIGNED,
    *(packed(number) for number in (-1, -(2**63))),
    *(b"\xcf" + (7).to_bytes(8, "big"), b"\xcc\x07", b"\x07", b"\xd3" + (-5).to_bytes(8, "big", signed=True), b"\xfb"),
]
_FINITE: Final = [double(number) for number in (0.0, -0.0, 1.0, 2.0, 0.1, float(2**53))]
_DOUBLES: Final = [*_FINITE, *(double(number) for number in (1e300, -1e-300, float("inf"), float("-inf")))]
_DECIMALS: Final = [
    decimal(text) for text in ("0", "0.000", "1", "1.00", "2.0", "0.1", "0.10", "-3", "12345678901234567890.1234567890")
]
# To compare a double with a decimal 2.6 makes a decimal of it, and doesn't ask whether there is one: infinities among decimals
# end the server, and numbers past 38 digits disorder its index.
_NUMBERS: Final = [*_INTEGERS, *_FINITE, *_DECIMALS]
_STRINGS: Final = [
    packed(text)
    for text in (
        "",
        "a",
        "A",
        "\0",
        "a\0",
        'key with / and \\ and "',
        "Größe 東京 🚀",
        "\udcff\udcfe",
        "x" * 600,
        "x" * 601,
        "\x1f",
    )
] + [b"\xd9\x01a", b"\xdb\x00\x00\x00\x01a", b"\xda\x00\x00"]
_BINARIES: Final = [packed(data) for data in (b"", b"\0", b"\xff", b"\xff\x00", b"abc", b"y" * 600)]
_BOOLEANS: Final = [packed(True), packed(False)]
_UUIDS: Final = [extension(_UUID, uuid.UUID(int=number).bytes) for number in (0, 1, 2**128 - 1, 2**64)]
_SCALARS: Final = [*_NUMBERS, *_STRINGS, *_BINARIES, *_BOOLEANS]

KEYS: Final[dict[str, list[Value]]] = {
    "unsigned": _UNSIGNED,
    "integer": _INTEGERS,
    "number": _NUMBERS,
    "double": _DOUBLES,
    "decimal": _DECIMALS,
    "string": _STRINGS,
    "varbinary": _BINARIES,
    "boolean": _BOOLEANS,
    "uuid": _UUIDS,
    "scalar": _SCALARS,
}
"""Types of key parts on 2.6, with values of each."""

NAMES: Final = (
    ".",
    "..",
    "a/b",
    "ab" * 100,
    "Ab",
    "aB",
    " x",
    "Größe 東京",
    'quote"',
    "back`tick",
    "$HOME",
    "a.b.c",
    "-",
    "%s%n",
    "tilde~",
    "NULL",
)
"""Names of spaces; no two become one topic, nor two that Kafka takes for one (dots for underscores)."""

FIELD_NAMES: Final = ("value", "Größe", "", "with space", 'quote"', "a.b", "back`tick")


_ALTERATION: Final = """
local name, kind, number = ...
local space = box.space[name]
if kind == 0 then space:truncate() end
if kind == 1 then
    local format = space:format()
    format[1].name = 'key1_' .. number
    space:format(format)
end
if kind == 2 then
    local parts = {}
    for _, part in ipairs(space.index.pk.parts) do
        table.insert(parts, 1, {part.fieldno, part.type, collation = part.collation})
    end
    space.index.pk:alter({parts = parts})
end
if kind == 3 then
    local format, parts = space:format(), {}
    for _, part in ipairs(space.index.pk.parts) do
        table.insert(parts, {part.fieldno, part.type, collation = part.collation})
    end
    space:drop()
    space = box.schema.space.create(name, {format = format})
    space:create_index('pk', {parts = parts})
end
return space.id
"""


@dataclass(frozen=True)
class OddSpace:
    """One space and what its keys are made of."""

    space_id: int
    name: str
    parts: tuple[str, ...]


@dataclass
class Oddities:
    """The master's spaces, and random requests for them."""

    tarantool: TarantoolServer
    seed: int
    spaces: list[OddSpace] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """What the server said to requests that it didn't take."""
    crash_count: int = 0
    _dice: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._dice = random.Random(self.seed)

    def create(self) -> None:
        """One space for each type of key, one for each collation, and some with several parts; under odd names."""
        names = list(NAMES)
        self._dice.shuffle(names)
        for kind in KEYS:
            self._create(names.pop(), (kind,))
        for collation in ("unicode", "unicode_ci", "binary"):
            self._create(names.pop(), ("string",), collation)
        for _ in range(3):
            self._create(names.pop(), tuple(self._dice.choices(list(KEYS), k=self._dice.randint(2, 4))))

    def _create(self, name: str, parts: tuple[str, ...], collation: str = "") -> None:
        (space_id,) = self.tarantool.eval(
            """
            local name, types, names, collation = ...
            local format, parts = {}, {}
            for number, kind in ipairs(types) do
                table.insert(format, {'key' .. number, kind})
                table.insert(parts, {number, kind, collation = collation ~= '' and collation or nil})
            end
            for _, field in ipairs(names) do
                if field ~= '' then table.insert(format, {field, 'any', is_nullable = true}) end
            end
            local space = box.schema.space.create(name, {format = format})
            space:create_index('pk', {parts = parts})
            return space.id
            """,
            name,
            parts,
            self._dice.sample(FIELD_NAMES, 3),
            collation,
        )
        self.spaces.append(OddSpace(space_id, name, parts))

    def run(self, count: int) -> int:
        """Send so many random requests; returns how many the server took."""
        requests = [self._request(self._dice.choice(self.spaces)) for _ in range(count)]
        try:
            with RawRequests(self.tarantool) as connection:
                answers = connection.send(requests)
        except ConnectionError:
            self._start_again()
            return 0
        self.refused += [answer for answer in answers if answer]
        return answers.count("")

    def _start_again(self) -> None:
        """2.6.0 has faults of its own that such rows meet, and ends. What it had taken holds, and is to be with consumers."""
        wait_for("the server's end", lambda: not self.tarantool.is_running)
        said = self.tarantool.log_tail()
        assert re.search(r"Segmentation fault|Assertion|assert|abort|SIG", said), f"the server ended, and not by a crash:\n{said}"
        self.crash_count += 1
        self.tarantool.start()

    def alter(self, count: int) -> None:
        """Change so many spaces: empty one, rename a field of a key, turn a key's parts round, drop one and make it again."""
        for _ in range(count):
            space = self._dice.choice(self.spaces)
            (done,) = self.tarantool.eval(_ALTERATION, space.name, self._dice.randint(0, 3), self._dice.randint(0, 10**6))
            if done != space.space_id:
                self.spaces[self.spaces.index(space)] = OddSpace(done, space.name, space.parts)

    def key(self, space: OddSpace) -> list[Value]:
        """A random key in one of its writings."""
        return [self._dice.choice(KEYS[part]) for part in space.parts]

    def _request(self, space: OddSpace) -> tuple[int, bytes]:
        dice = self._dice
        space_id, key = packed(space.space_id), self.key(space)
        kind = dice.choices((raw.INSERT, raw.REPLACE, raw.UPDATE, raw.DELETE, raw.UPSERT), (2, 5, 3, 2, 2))[0]
        pairs = [(raw.SPACE_ID, space_id)]
        if kind in (raw.INSERT, raw.REPLACE):
            pairs.append((raw.TUPLE, self._row(key)))
            pairs += [(extra, packed(dice.randint(0, 1))) for extra in (raw.INDEX_BASE, raw.INDEX_ID) if dice.random() < 0.3]
        elif kind == raw.DELETE:
            pairs.append((raw.KEY, array(key)))
        elif kind == raw.UPDATE:
            pairs += [(raw.KEY, array(key)), (raw.TUPLE, self._operations(len(key))), (raw.INDEX_BASE, packed(0))]
        else:
            pairs += [(raw.TUPLE, self._row(key)), (raw.OPERATIONS, self._operations(len(key))), (raw.INDEX_BASE, packed(0))]
        dice.shuffle(pairs)
        return kind, raw.body(*pairs, decoys=[self._decoy() for _ in range(dice.choice((0, 0, 0, 1, 2)))])

    def _decoy(self) -> bytes:
        """A key that the server passes over, or one that comes again, with a tuple of some space."""
        key = self._dice.choice(
            (b"\xcc\x21", b"\xcd\x00\x21", b"\xce\x00\x00\x00\x21", b"\xff", packed("!"), packed(b"!"), packed(None))
        )
        return key + array([*self.key(self._dice.choice(self.spaces)), self._dice.choice(_SCALARS)])

    def _row(self, key: Sequence[Value]) -> Value:
        return array([*key, *(self._value() for _ in range(self._dice.choice((0, 1, 2, 3, 3, 3, 5, 20))))])

    def _operations(self, key_count: int) -> Value:
        dice = self._dice
        made = []
        for _ in range(dice.randint(1, 3)):
            place = packed(key_count + dice.randint(0, 3))
            match dice.randint(0, 3):
                case 0:
                    made.append(array([packed("="), place, self._value()]))
                case 1:
                    made.append(array([packed("!"), place, self._value()]))
                case 2:
                    made.append(array([packed("#"), place, packed(dice.randint(1, 3))]))
                case _:
                    made.append(array([packed("+"), place, dice.choice(_NUMBERS)]))
        return array(made)

    def _value(self) -> Value:
        dice = self._dice
        make: Callable[[], Value] = dice.choice(
            (
                lambda: packed(None),
                lambda: dice.choice(_SCALARS),
                lambda: dice.choice(_UUIDS),
                lambda: nested(dice.choice((1, 5, 60, 400)), dice.choice(_SCALARS)),
                lambda: b"\x82" + packed("same") + dice.choice(_SCALARS) + packed("other") + self._value(),
                lambda: b"\x82" + packed(1) + packed("an integer's") + packed("1") + packed("and a text's"),
                lambda: b"\xdc\x00\x00",  # an empty array in a longer form
                lambda: b"\xcf" + dice.randint(0, 300).to_bytes(8, "big"),
                lambda: b"\xdb" + (3).to_bytes(4, "big") + b"abc",
                lambda: packed(self._looks_like_a_request()),
            )
        )
        return make()

    def _looks_like_a_request(self) -> bytes | str:
        space = self._dice.choice(self.spaces)
        inner = raw.body((raw.SPACE_ID, packed(space.space_id)), (raw.TUPLE, array(self.key(space))))
        return self._dice.choice((inner, inner.decode("utf-8", "surrogateescape"), b"\x21" + array(self.key(space))))

    # What has no JSON.

    def shapes(self, spaces: int) -> None:
        """A form of 2,000 fields, tuples of 5,000, and so many empty spaces."""
        self.tarantool.eval(
            """
            local space_count = ...
            local format = {{'id', 'unsigned'}}
            for i = 2, 2000 do format[i] = {'f' .. i, 'any', is_nullable = true} end
            local wide = box.schema.space.create('wide', {format = format})
            wide:create_index('pk')
            for i = 1, 60 do
                local row = {i}
                for place = 2, i % 3 == 0 and 5000 or i * 30 do row[place] = place end
                wide:replace(row)
            end
            for i = 1, 40 do wide:update(i, {{'=', 3, 'three'}, {'=', i * 20, i}}) end
            for i = 1, space_count do box.schema.space.create('one of many ' .. i):create_index('pk') end
            """,
            spaces,
        )

    def unencodable(self, name: str) -> int:
        """A space with rows that can't be published among others that can; returns how many of them there are."""
        (space_id,) = self.tarantool.eval("local s = box.schema.space.create(...) s:create_index('pk') return s.id", name)
        values = [
            extension(_TIMESTAMP, b"\0\0\0\x01"),
            extension(_TIMESTAMP, bytes(8)),
            extension(_TIMESTAMP, bytes(12)),
            extension(_UNKNOWN, b"what only its writer knows"),
            nested(1_500),
            nested(100_000),
            b"\x81\x01" * 30_000 + b"\x01",
            array([extension(_TIMESTAMP, b"\0\0\0\x01")]),
        ]
        requests = [
            (raw.REPLACE, raw.body((raw.SPACE_ID, packed(space_id)), (raw.TUPLE, array([packed(2 * number + parity), value]))))
            for number, odd in enumerate(values)
            for parity, value in enumerate((packed("good"), odd))
        ]
        with RawRequests(self.tarantool) as connection:
            answers = connection.send(requests)
        assert not any(answers), answers
        return len(values)


def array(items: Sequence[Value]) -> Value:
    """An array of packed values."""
    header: bytes = msgpack.Packer().pack_array_header(len(items))
    return header + b"".join(items)
