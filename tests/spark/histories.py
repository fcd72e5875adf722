"""Random histories of one space: the messages of a daemon, and what each of them leaves."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.spark.messages import Message, compact, event, schema, truncate

Row = dict[str, Any]


@dataclass
class Story:
    """A space that is changed at random: rows, truncations, its name, its fields' names and, without images, its key.

    With `has_images` the events have both rows, otherwise the operations.
    """

    random: random.Random
    has_images: bool
    messages: list[Message] = field(default_factory=list)
    rows: dict[int, list[Any]] = field(default_factory=dict)
    """The space's rows by the value of their first field."""
    expected: list[tuple[int, str, str | None, str | None]] = field(default_factory=list)
    """Seq, op, before and after of each event, as texts."""
    seq: int = 0
    version: int = 1
    space: str = "users"
    names: tuple[str, ...] = ("id", "name", "balance", "other")
    key: str = "id"

    def __post_init__(self) -> None:
        """Begin with an empty space."""
        self._tell_form()

    def go_on(self, count: int) -> None:
        """Change the space `count` times."""
        for _ in range(count):
            dice = self.random.random()
            if dice < 0.03:
                self._alter()
            elif dice < 0.05:
                self.seq += 1
                self.messages.append(truncate(self.seq, space=self.space, version=self.version))
                self.expected.append((self.seq, "t", None, None))
                self.rows.clear()
            else:
                self._change(self.random.randrange(8))

    def shown(self, values: Iterable[Any] | None) -> str | None:
        """A row's text with the names that the fields have now."""
        return None if values is None else compact(dict(zip(self.names, values, strict=True)))

    def fold(self) -> dict[str, Row]:
        """The space's rows by the texts of their keys."""
        return {self._key_text(row): dict(zip(self.names, row, strict=True)) for row in self.rows.values()}

    def _change(self, identity: int) -> None:
        self.seq += 1
        before = self.rows.get(identity)
        dice = self.random.random()
        operation: dict[str, Any] = {}
        after: list[Any] | None
        if before is not None and dice < 0.25:
            op, after = "d", None
        elif before is not None and dice < 0.75:
            op, after = "u", [*before[:2], before[2] + self.seq, before[3]]
            operation = {"patch": [{"op": "+", "field": self.names[2], "value": self.seq}]}
        else:
            # The last field is unique, too: it may become the key.
            op, after = "c" if before is None else "u", [identity, f"n{self.seq}", self.seq, identity + 100]
        if after is None:
            self.rows.pop(identity)
        else:
            self.rows[identity] = after
        images: dict[str, Any] = {"before": self.shown(before), "after": self.shown(after)}
        told = images if self.has_images else operation or {"after": images["after"]}
        told = {name: value for name, value in told.items() if value is not None}
        keyed = after or before
        assert keyed is not None
        place = self.names.index(self.key)
        self.messages.append(event(op, {self.key: keyed[place]}, self.seq, told, space=self.space, version=self.version))
        self.expected.append((self.seq, op, images["before"], images["after"]))

    def _alter(self) -> None:
        what = self.random.choice(("space", "field", *(() if self.has_images else ("key", "key field"))))
        if what == "space":
            self.space = self.random.choice([name for name in ("users", "people", "humans") if name != self.space])
        elif what == "key":
            self.key = self.names[3] if self.key == self.names[0] else self.names[0]
        else:
            place = 1 if what == "field" else self.names.index(self.key)
            renamed = f"f{self.version}"
            self.key = renamed if self.key == self.names[place] else self.key
            self.names = (*self.names[:place], renamed, *self.names[place + 1 :])
        self.version += 1
        self._tell_form()

    def _tell_form(self) -> None:
        columns = list(zip(self.names, ("unsigned", "string", "unsigned", "unsigned"), strict=True))
        self.messages.append(schema(self.seq, space=self.space, version=self.version, columns=columns, key=(self.key,)))

    def _key_text(self, row: list[Any]) -> str:
        return compact({self.key: row[self.names.index(self.key)]})


def ends_of_batch(
    random_: random.Random, done: Mapping[tuple[str, int], int], ends: Mapping[tuple[str, int], int], most: int
) -> dict[tuple[str, int], int]:
    """Offsets at which a batch ends: each partition is read as far as it happens to be."""
    return {place: min(end, done.get(place, 0) + random_.randrange(most + 1)) for place, end in ends.items()}
