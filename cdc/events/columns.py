"""Rules for columns: which fields of rows are left out, and which are published as something else.

    rules ──▶ plan of one form: by field      shown │ left out │ hash │ truncate │ mask
                 │
                 ├─▶ ShownForm, the form that consumers see      schema records, names and types in every format
                 ├─▶ a tuple's values as consumers see them      before, after, rows of snapshots, TAP
                 └─▶ operations as consumers see them            patch

A plan is made once for each form. Whatever writes rows takes the ShownForm instead of the form, and gets the values through
`shown_rows`: then neither an encoder nor its error messages know a value that isn't to be published.

The fields of the primary key can't be left out or masked: consumers know rows by their keys.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal, NamedTuple, Protocol
from uuid import UUID
from zlib import crc32

from cdc.errors import ConfigurationError, EncodingError, WiderRowError
from cdc.events.json_values import WAY_OUT, encode, plain
from cdc.schema.forms import Field, SchemaChange, SpaceForm
from cdc.tuples.operations import Operation

Encode = Callable[[Sequence[Any]], bytes]
Mask = Callable[[Any], Any]
"""Function from a field's value to the value that is published in its place."""

CONCEALED: Final = "isn't shown, because columns.rules apply to its space"


class ColumnRule(Protocol):
    """One rule of the configuration. All texts in it but the constants are regular expressions that match complete names."""

    @property
    def spaces(self) -> str:
        """The spaces."""

    @property
    def include(self) -> Sequence[str]:
        """The published columns, beside those of the primary key; empty: all."""

    @property
    def exclude(self) -> Sequence[str]:
        """Columns that aren't published."""

    @property
    def hash(self) -> Sequence[str]:
        """Columns that are published as a salted hash."""

    @property
    def truncate(self) -> Mapping[str, int]:
        """Columns of which so many characters are published."""

    @property
    def mask(self) -> Mapping[str, str]:
        """Columns that are published as a constant."""


class Treatment(NamedTuple):
    """What is published of a field: nothing (`exclude`), or another value, whose mask may have an argument."""

    kind: Literal["", "exclude", "hash", "truncate", "mask"]
    argument: int | str = ""


_SHOWN: Final = Treatment("")
_EXCLUDE: Final = Treatment("exclude")
_LENGTHS_PAST_FORMAT: Final = 32
"""Maximum number of fields past the format for which an encoder is kept."""
_OPERATION_PAST_MAX: Final = 1_000
"""Maximum number of fields past the format that an operation may name: each has to be looked at, and an UPSERT may name any."""


class _CompiledRule:
    def __init__(self, rule: ColumnRule, number: int) -> None:
        self.name = f"columns.rules, the rule for spaces = {rule.spaces!r} (number {number})"
        self.rule = rule
        self.spaces = re.compile(rule.spaces)
        self.include = [re.compile(pattern) for pattern in rule.include]
        self.patterns: list[tuple[re.Pattern[str], Treatment]] = [
            *((re.compile(pattern), _EXCLUDE) for pattern in rule.exclude),
            *((re.compile(pattern), Treatment("hash")) for pattern in rule.hash),
            *((re.compile(pattern), Treatment("truncate", count)) for pattern, count in rule.truncate.items()),
            *((re.compile(pattern), Treatment("mask", text)) for pattern, text in rule.mask.items()),
        ]

    def explicit(self, column: str) -> Iterator[Treatment]:
        """Yield what the rule says of a column by a pattern that matches its name."""
        return (treatment for pattern, treatment in self.patterns if pattern.fullmatch(column))

    def leaves_out(self, column: str) -> bool:
        """Return whether the rule says which columns are published, and this one isn't among them."""
        return bool(self.include) and not any(pattern.fullmatch(column) for pattern in self.include)


class ColumnRules:
    """All rules. `salt` is the secret with which values are hashed."""

    def __init__(self, rules: Sequence[ColumnRule] = (), salt: bytes = b"") -> None:
        self._rules = [_CompiledRule(rule, number) for number, rule in enumerate(rules, 1)]
        self._salt = salt

    def __bool__(self) -> bool:
        return bool(self._rules)

    def plan(self, form: SpaceForm) -> ColumnPlan | None:
        """Return the plan for a form, or None if no rule says anything about its columns.

        Raises ConfigurationError if rules contradict each other, or don't spare the primary key.
        """
        rules = self._of_space(form.name)
        if not rules:
            return None
        in_key = {part.field for part in form.key_parts}
        treatments: list[Treatment | None] = []
        for place in range(max(len(form.fields), *(place + 1 for place in in_key))):
            name, treatment, rule = form.field_name(place), *_treatment(rules, form, form.field_name(place))
            if place in in_key:
                _check_key(form, name, treatment, rule)
                treatment = None
            treatments.append(treatment)

        def past(name: str) -> Treatment | None:
            return _treatment(rules, form, name)[0]

        has_past = any(rule.include for rule in rules) or any(
            _may_match_past(pattern) for rule in rules for pattern, _ in rule.patterns
        )
        if not has_past and not any(treatments):
            return None
        return ColumnPlan(form, treatments, past if has_past else None, self._salt)

    def shown(self, form: SpaceForm) -> SpaceForm:
        """Return the form that consumers see. Raises ConfigurationError as `plan` does."""
        plan = self.plan(form)
        return form if plan is None else plan.shown

    def check_new_keys(self, changes: Iterable[SchemaChange]) -> None:
        """Raise ConfigurationError if DDL puts a column into a primary key that was left out or masked until then.

        `include` spares the columns of the key. So without this check, DDL could publish what nobody has included.
        """
        for change in changes:
            if change.former is not None:
                self._check_new_key(change.former, change.form)

    def _check_new_key(self, former: SpaceForm, form: SpaceForm) -> None:
        plan = self.plan(former) if self._of_space(form.name) else None
        places = {part.field for part in former.key_parts}
        for part in form.key_parts:
            if plan is not None and part.field not in places and plan.treatment(part.field) is not None:
                raise ConfigurationError(
                    f"the column {form.field_name(part.field)!r} of space {form.name!r} is in its primary key now, and by "
                    "columns.rules it hasn't been published as it is: consumers know rows by their keys",
                    "If consumers may have it, name it in the rule's include; otherwise leave the space out (spaces.exclude).",
                )

    def conceals(self, form: SpaceForm | None) -> bool:
        """Return whether a row must not be shown as it is: its space has a plan, or isn't known (None)."""
        if form is None:
            return bool(self._rules)
        return bool(self._of_space(form.name))

    def mark(self, form: SpaceForm) -> str:
        """Return a text that changes whenever rules, or the salt, change what is published of a form; empty without a rule."""
        rules = self._of_space(form.name)
        if not rules:
            return ""
        told = [[rule.rule.include, [[pattern.pattern, *treatment] for pattern, treatment in rule.patterns]] for rule in rules]
        salt = hmac.digest(self._salt, b"mark", "sha256")[:2].hex() if any(rule.rule.hash for rule in rules) else ""
        return encode([salt, told]).decode()

    def checksum(self, body: bytes) -> int | None:
        """Return a checksum of a row's body for the checkpoint, which others may read; None if it would tell them of values.

        Short values can be guessed by a CRC-32. With a salt, there is a checksum that only its owner can compute.
        """
        if not self._rules:
            return crc32(body)
        if not self._salt:
            return None
        kind = int.from_bytes(hmac.digest(self._salt, b"kind of checksum", "sha256")[:2])
        return 1 + kind << 32 | int.from_bytes(hmac.digest(self._salt, body, "sha256")[:4])

    def without_effect(self, forms: Sequence[SpaceForm]) -> Iterator[str]:
        """Yield sentences about rules that match no space, and about patterns that match no column, of these forms."""
        for rule in self._rules:
            own = [form for form in forms if rule.spaces.fullmatch(form.name)]
            if not own:
                yield f"{rule.name} matches no published space"
                continue
            columns = {name for form in own for name in form.field_names}
            for pattern in (*rule.include, *(pattern for pattern, _ in rule.patterns)):
                if not any(map(pattern.fullmatch, columns)) and not _may_match_past(pattern):
                    yield f"{rule.name}: {pattern.pattern!r} matches no column of {', '.join(form.name for form in own[:5])}"

    def _of_space(self, name: str) -> list[_CompiledRule]:
        return [rule for rule in self._rules if rule.spaces.fullmatch(name)]


NO_COLUMN_RULES: Final = ColumnRules()


def _treatment(rules: Sequence[_CompiledRule], form: SpaceForm, column: str) -> tuple[Treatment | None, _CompiledRule | None]:
    """Return what the rules say of a column, and the first rule that says it by a pattern. Raises ConfigurationError."""
    found: Treatment | None = None
    by: _CompiledRule | None = None
    for rule in rules:
        for treatment in rule.explicit(column):
            if found is not None and treatment != found:
                assert by is not None
                raise ConfigurationError(
                    f"{by.name} says {_told(found)} of the column {column!r} of space {form.name!r}, and "
                    f"{'it' if rule is by else rule.name} also says {_told(treatment)}",
                    "Leave one of the two out, or let one of the patterns match fewer columns.",
                )
            found, by = treatment, by or rule
    if found is None and any(rule.leaves_out(column) for rule in rules):
        return _EXCLUDE, None
    return found, by


def _told(treatment: Treatment) -> str:
    return f"{treatment.kind} {treatment.argument!r}" if treatment.kind in ("truncate", "mask") else treatment.kind


def _check_key(form: SpaceForm, column: str, treatment: Treatment | None, rule: _CompiledRule | None) -> None:
    if treatment is not None and rule is not None:
        raise ConfigurationError(
            f"{rule.name} says {_told(treatment)} of the column {column!r}, which is in the primary key of space {form.name!r}: "
            "consumers know rows by their keys",
            "Let the pattern match other columns only, or leave the space out (spaces.exclude).",
        )


def _may_match_past(pattern: re.Pattern[str]) -> bool:
    """Return whether a pattern may match `field_N`, the name of a field past the format."""
    return any(pattern.fullmatch(f"field_{number}") for number in range(1, 100))


class ColumnPlan:
    """What is published of one form's rows."""

    def __init__(
        self,
        form: SpaceForm,
        treatments: Sequence[Treatment | None],
        past: Callable[[str], Treatment | None] | None,
        salt: bytes,
    ) -> None:
        """`treatments` are those of the format's fields, and of the key's; `past` returns those of fields past the format."""
        self.form = form
        self._treatments = list(treatments)
        self._past = past
        self._salt = salt
        # Number of fields that `shown` names; those behind them have the names of their places.
        self._named_count = len(treatments) if past is not None else len(form.fields)
        # The places of the published ones behind them, as far as they have been asked for.
        self._past_places: list[int] = []
        self.shown = self._shown_form()

    def treatment(self, place: int) -> Treatment | None:
        """Return the treatment of the field at a place; None if it is published as it is."""
        if place < len(self._treatments):
            return self._treatments[place]
        return self._past(self.form.field_name(place)) if self._past is not None else None

    def places(self, length: int) -> list[tuple[int, Mask | None]]:
        """Return the places of the published fields of a tuple with `length` fields, and the masks of their values."""
        found: list[tuple[int, Mask | None]] = []
        for place in range(length):
            treatment = self.treatment(place)
            if treatment is None:
                found.append((place, None))
            elif treatment.kind != "exclude":
                found.append((place, self._mask(place, treatment)))
        return found

    @property
    def compiled(self) -> tuple[list[tuple[str, int, bytes]], bytes, bool]:
        """The treatments of the fields as the compiled row path gets them, the salt, and whether they are all that there are.

        If not, tuples that are longer than the format may have others.
        """
        found = [(treatment or _SHOWN) for treatment in self._treatments]
        told: list[tuple[str, int, bytes]] = [
            (kind, argument if isinstance(argument, int) else 0, encode(argument) if kind == "mask" else b"")
            for kind, argument in found
        ]
        return told, self._salt, self._past is None

    def past_name(self, number: int) -> str:
        """Return the name of a published field behind those that `shown` names; `number` counts them from 0."""
        if self._past is None:
            return self.form.field_name(self._named_count + number)
        places = self._past_places
        while number >= len(places):
            place = places[-1] + 1 if places else self._named_count
            while (self.treatment(place) or _SHOWN).kind == "exclude":
                place += 1
            places.append(place)
        return self.form.field_name(places[number])

    def operations(self, operations: Sequence[Operation]) -> list[Operation]:
        """Return an UPDATE's operations as consumers can apply them: to the published fields, whose places they name.

        Operations on fields that are left out are dropped. One on a masked field sets its new mask, or null where only the row
        would tell it. Raises EncodingError for operations that move fields from or to a place that the rules concern.
        """
        return [found for operation in operations if (found := self._operation(operation)) is not None]

    def _operation(self, operation: Operation) -> Operation | None:
        if operation.field < 0:
            raise self._untellable("counts its field from the end of the row, so it may be any of them")
        if operation.field >= self._named_count > len(self.shown.fields):
            # Consumers number the fields behind the format by the fields that they get.
            raise self._untellable("names a field behind the format")
        is_moving = operation.code in "!#" and not operation.path
        if is_moving and (self._past is not None or any(self._treatments[operation.field :])):
            raise self._untellable("moves the fields behind it")
        place = self._shown_place(operation.field)
        treatment = self.treatment(operation.field)
        if treatment is None:
            return replace(operation, field=place)
        if treatment.kind == "exclude":
            return None
        if operation.code == "=" and not operation.path:
            mask = self._mask(operation.field, treatment)
            return Operation("=", place, "", mask(operation.argument))
        return None if treatment.kind == "mask" else Operation("=", place, "", None)

    def _untellable(self, what: str) -> EncodingError:
        return EncodingError(
            f"an operation of an UPDATE or UPSERT of space {self.form.name!r} {what}, and columns.rules apply to some: without "
            "the row it can't be published",
            f'With state.images = "full" the row itself is published. {WAY_OUT}',
        )

    def _shown_place(self, place: int) -> int:
        if self._past is None and place >= self._named_count:
            return len(self.shown.fields) + place - self._named_count
        if place > len(self._treatments) + _OPERATION_PAST_MAX:
            raise self._untellable("names a field far behind the format")
        return sum((self.treatment(former) or _SHOWN).kind != "exclude" for former in range(place))

    def _shown_form(self) -> ShownForm:
        shown = self.places(len(self._treatments))
        new_places = {place: new for new, (place, _) in enumerate(shown)}
        given = {item.name: getattr(self.form, item.name) for item in fields(SpaceForm)}
        given["fields"] = tuple(self._shown_field(place, mask) for place, mask in shown if place < self._named_count)
        given["key_parts"] = tuple(replace(part, field=new_places[part.field]) for part in self.form.key_parts)
        # Rows may be of any length, as consumers see them.
        given["field_count"] = 0
        return ShownForm(**given, plan=self)

    def _shown_field(self, place: int, mask: Mask | None) -> Field:
        if place >= len(self.form.fields):
            return Field(self.form.field_name(place), "any", is_nullable=False)
        item = self.form.fields[place]
        return item if mask is None else Field(item.name, "string", item.is_nullable, item.has_default)

    def _mask(self, place: int, treatment: Treatment) -> Mask:
        argument = treatment.argument
        if treatment.kind == "mask":
            return lambda _: argument
        name = self.form.field_name(place)
        if treatment.kind == "hash":
            return _hash(self._salt, name)
        assert isinstance(argument, int)
        return _truncate(argument, name)


@dataclass(frozen=True, slots=True)
class ShownForm(SpaceForm):
    """A form as consumers see it: without the fields that are left out, and with strings in place of masked ones.

    The rows that are encoded by it are tuples of the real form, `plan.form`.
    """

    plan: ColumnPlan = field(kw_only=True, compare=False, repr=False)

    def field_name(self, place: int) -> str:
        """Return the name of the published field at `place`, as SpaceForm.field_name does."""
        return self.fields[place].name if place < len(self.fields) else self.plan.past_name(place - len(self.fields))


def plan_of(form: SpaceForm) -> ColumnPlan | None:
    """Return the plan by which a form is shown; None if it is shown as it is."""
    return form.plan if isinstance(form, ShownForm) else None


def shown_rows(form: SpaceForm, rows: dict[int, Encode]) -> dict[int, Encode]:
    """Return encoders of tuples by their length; `rows` are the encoders of published values, made by the same form."""
    plan = plan_of(form)
    return rows if plan is None else _ShownRows(plan, rows)


class _ShownRows(dict[int, Encode]):
    def __init__(self, plan: ColumnPlan, rows: dict[int, Encode]) -> None:
        super().__init__()
        self._plan = plan
        self._rows = rows

    def __missing__(self, length: int) -> Encode:
        places = self._plan.places(length)
        inner = self._rows[len(places)]

        def encode_shown(values: Sequence[Any]) -> bytes:
            try:
                return inner([values[place] if mask is None else mask(values[place]) for place, mask in places])
            except WiderRowError as error:  # the form needs fields for all places, also for those that aren't published
                raise WiderRowError(error.message, length) from error

        if length <= len(self._plan.form.fields) + _LENGTHS_PAST_FORMAT:
            self[length] = encode_shown
        return encode_shown


def _text(value: Any, column: str) -> str:
    """Return a value's text: a string itself, of other values the JSON that rows would have, without quotes around it."""
    try:
        shown = plain(value)
        if isinstance(shown, str):
            return shown
        return str(shown) if isinstance(shown, UUID) else encode(shown).decode().strip('"')
    except (EncodingError, RecursionError):
        # The error itself may have quoted the value.
        raise EncodingError(f"a value of the masked column {column!r} has no form as JSON", WAY_OUT) from None


def _hash(salt: bytes, column: str) -> Mask:
    def mask(value: Any) -> str | None:
        if value is None:
            return None
        if isinstance(value, bytes):
            data = value
        elif isinstance(value, str):
            data = value.encode("utf-8", "surrogateescape")
        else:
            data = _text(value, column).encode()
        return hmac.digest(salt, data, "sha256").hex()

    return mask


def _truncate(count: int, column: str) -> Mask:
    def mask(value: Any) -> str | None:
        return None if value is None else _text(value, column)[:count]

    return mask
