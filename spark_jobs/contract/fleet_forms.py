"""The forms of a fleet's spaces: those of all shards, numbered as if one daemon had written them. Pure.

Each shard has numbers of its own: `users` may be space 512 with schema_version 3 in one, and 515 with 7 in another. Readers of
the fleet's table need one number for one space, and a form that is the same in all shards only once. So a space gets a number by
its name, and forms are numbered in the order in which the job meets them:

    s1   F1 ───── F2 ─────────        a change of a format, rolled out over the shards
    s2   F1 ─────────── F2 ───
    fleet  1      2                   the second shard's F2 is the fleet's 2, too

A shard that goes back to a former form goes on to a new number. Rows of any form are shown by the names and columns of the
newest. A space that exists in each shard by itself (its topic is `<prefix>.<shard>.<space>`) is called `<shard>.<space>` here.

What changes the rows themselves can't be numbered so: a renaming, or another primary key, which one shard has and another hasn't.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple
from zlib import crc32

from spark_jobs.errors import JobError

_OF_KEY: Final = ("primaryKeyColumnNames", "primaryKeyColumnsAsWritten", "primaryKeyColumnsCollated")


class ShardForm(NamedTuple):
    """What an event of a shard says of its form."""

    shard: str
    space_id: int
    schema_version: int


class FleetForm(NamedTuple):
    """A space's name in the fleet's table, and the number of its form there."""

    space: str
    schema_version: int


def space_number(space: str) -> int:
    """Return the number of a space of the fleet. Spark's crc32 of the name is the same."""
    return crc32(space.encode())


class FleetForms:
    """The forms met so far. They are kept from batch to batch (`to_json`), as their numbers must stay."""

    def __init__(self, records: Iterable[Mapping[str, Any]] = (), known: Mapping[ShardForm, FleetForm] | None = None) -> None:
        """Go on with the records and the numbers of earlier batches."""
        self._records = [dict(record) for record in records]
        self.known: dict[ShardForm, FleetForm] = dict(known or {})

    def learn(self, shard: str, texts: Iterable[str], seq: int, is_chosen: Callable[[str], bool] = lambda _: True) -> None:
        """Number the forms in a shard's schema records that are new, of chosen spaces.

        They hold after `seq` of the fleet's table. Raises JobError for a renaming or another primary key, and for a record that
        isn't one of a schema topic.
        """
        found = [form for text in texts for form in _forms(shard, text)]
        for form, space, table in sorted(found, key=lambda one: one[0].schema_version):
            if form in self.known:
                continue
            # Also if the new name isn't chosen: the rows that the table has would stay in it for good.
            self._check_renamed(form, space)
            if not is_chosen(space):
                continue
            self._check_number(space)
            self._check_key(form, space, table)
            of_shard = (number for other, number in self.known.items() if (other.shard, number.space) == (shard, space))
            newest = max((number.schema_version for number in of_shard), default=-1)
            same = (number for number, known in self._of_space(space) if number > newest and known == table)
            number = next(same, None)
            if number is None:
                number = len(self._records) + 1
                self._records.append(_record(space, number, seq, table))
            self.known[form] = FleetForm(space, number)

    def records(self) -> list[str]:
        """Return the records of the fleet's schema, in order."""
        return [json.dumps(record) for record in self._records]

    def to_json(self) -> Any:
        """Return what must be kept."""
        return {"records": self._records, "known": [[*form, *number] for form, number in self.known.items()]}

    @classmethod
    def from_json(cls, kept: Any) -> FleetForms:
        """The inverse of `to_json`."""
        known = {ShardForm(*each[:3]): FleetForm(*each[3:]) for each in kept["known"]}
        return cls(kept["records"], known)

    def _of_space(self, space: str) -> list[tuple[int, Any]]:
        return [
            (number, record["tableChanges"][0]["table"])
            for number, record in enumerate(self._records, 1)
            if record["source"]["table"] == space
        ]

    def _check_renamed(self, form: ShardForm, space: str) -> None:
        former = {number.space for other, number in self.known.items() if other[:2] == form[:2]} - {space}
        if former:
            raise JobError(
                f"The shard {form.shard!r} has renamed the space {min(former)!r} to {space!r}. Other shards do so earlier or"
                " later, and until then their rows have the other name, so the tables of a fleet don't follow renamings. Leave"
                " both names out with --spaces, with a new --path and an empty --checkpoint."
            )

    def _check_number(self, space: str) -> None:
        others = {number.space for number in self.known.values()} - {space}
        if any(space_number(other) == space_number(space) for other in others):
            raise JobError(f"The name of the space {space!r} has the number of another one. Leave one of them out with --spaces.")

    def _check_key(self, form: ShardForm, space: str, table: Mapping[str, Any]) -> None:
        for _, known in self._of_space(space):
            if any(known.get(name) != table.get(name) for name in _OF_KEY):
                raise JobError(
                    f"The space {space!r} has another primary key in the shard {form.shard!r} ({', '.join(table[_OF_KEY[0]])})"
                    f" than before or in others ({', '.join(known[_OF_KEY[0]])}), so the keys of its rows can't be compared, and"
                    " a table of the fleet can't have them. Leave the space out with --spaces, with a new --path and an empty"
                    " --checkpoint."
                )


def _forms(shard: str, text: str) -> Iterable[tuple[ShardForm, str, Mapping[str, Any]]]:
    """Yield the forms in a record, with the name of the space in the fleet's table. A dropped space has none."""
    try:
        record = json.loads(text)
        source = record["source"]
        for change in record["tableChanges"]:
            table = change["table"]
            if table is not None:
                space = source["table"]
                is_apart = (change.get("topic") or "").startswith(f"{shard}.")
                form = ShardForm(shard, source["space_id"], source["schema_version"])
                yield form, f"{shard}.{space}" if is_apart else space, {"columns": table["columns"], **_key_of(table)}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise JobError(f"The topic <prefix>.{shard}.schema holds something that is no schema record: {text[:300]}") from error


def _key_of(table: Mapping[str, Any]) -> dict[str, Any]:
    return {name: table[name] for name in _OF_KEY if name in table}


def _record(space: str, number: int, seq: int, table: Mapping[str, Any]) -> dict[str, Any]:
    source = {"table": space, "space_id": space_number(space), "schema_version": number, "seq": seq, "snapshot": "false"}
    return {"source": source, "tableChanges": [{"type": "ALTER", "id": f'"{space}"', "table": dict(table)}]}
