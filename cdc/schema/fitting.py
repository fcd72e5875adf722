"""Check whether a tuple fits its space's format: the number of fields, their types and ranges, nil, and missing fields.

The check is used only for the results of UPSERTs in vinyl, which the server ignores if they don't fit. It works on the bytes of
the tuple, because a type may require an encoding: a float32 isn't a float64, and an `unsigned` field refuses a number that is
encoded as a signed one.

Out of scope: types that indexes require beyond the format, and constraints.

Sources: src/box/tuple_format.c (tuple_field_map_create), field_def.c (field_mp_type, field_ext_type, field_type_min_value,
field_type_decimal_precision), src/lib/core/decimal.c (decimal_fits_fixed_point), src/lib/core/mp_extension_types.h.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Final

from cdc.errors import ConfigurationError
from cdc.protocol import layout
from cdc.protocol.extensions import unpack
from cdc.schema.forms import Field, SpaceForm

Check = Callable[[bytes], bool]
"""Check of a value, as it is written, that isn't nil."""

_DECIMAL, _UUID, _DATETIME, _INTERVAL = 1, 2, 4, 6
"""Codes of extensions."""
_INTEGERS: Final = frozenset({layout.UNSIGNED, layout.INTEGER})
_FLOATS: Final = frozenset({layout.FLOAT, layout.DOUBLE})
_BOOLEANS: Final = frozenset({b"\xc2", b"\xc3"})

_INTEGERS_IN_DOUBLES_SINCE: Final = (2, 11, 1)
"""First version in which a field of the type `double` accepts integers and float32 too; before it, only doubles fit."""
_MORE_SCALARS_SINCE: Final = (2, 10)
"""First version in which a UUID, and a point in time, is a scalar."""
_DEFAULTS_SINCE: Final = (3, 0)
"""First version in which a field with a default may be nil. Earlier servers keep defaults for SQL alone."""


def _is(*kinds: str) -> Check:
    return lambda value: layout.TYPES[value[0]] in kinds


def _is_extension(*codes: int) -> Check:
    return lambda value: (
        layout.TYPES[value[0]] is layout.EXTENSION and value[layout.content(value, 0)[0] - 1] in codes  # the code comes first
    )


def _either(*checks: Check) -> Check:
    return lambda value: any(check(value) for check in checks)


def _is_boolean(value: bytes) -> bool:
    return value in _BOOLEANS


def _is_between(first: int, last: int) -> Check:
    def check(value: bytes) -> bool:
        return layout.TYPES[value[0]] in _INTEGERS and first <= layout.integer(value, 0) <= last

    return check


def _has_digits(digits_max: int) -> Callable[[Field], Check]:
    """Return a maker of checks: a decimal with at most so many digits, counted down to the field's scale."""

    def of_field(field: Field) -> Check:
        def check(value: bytes) -> bool:
            if not _is_decimal(value):
                return False
            number = unpack(value)
            if not isinstance(number, Decimal):
                return False  # the extension's bytes aren't a decimal
            # The context's precision would round: the digits are counted one by one.
            _, digits, exponent = number.as_tuple()
            assert isinstance(exponent, int), "Tarantool has no NaN and no infinity among its decimals"
            text = "".join(map(str, digits)).lstrip("0")
            shortest = text.rstrip("0")
            if not shortest:
                return True
            zeroes = exponent + len(text) - len(shortest) + (field.scale or 0)
            return zeroes >= 0 and len(shortest) + zeroes <= digits_max

        return check

    return of_field


def _any(_: bytes) -> bool:
    return True


_is_decimal: Final = _is_extension(_DECIMAL)
_is_number: Final = _either(_is(*_INTEGERS, *_FLOATS), _is_decimal)
_is_old_scalar: Final = _either(_is_number, _is(layout.STRING, layout.BINARY), _is_boolean)


def _unsigned_up_to(last: int) -> Check:
    def check(value: bytes) -> bool:
        return layout.TYPES[value[0]] is layout.UNSIGNED and layout.integer(value, 0) <= last

    return check


_BY_TYPE: Final[dict[str, Check]] = {
    "any": _any,
    "unsigned": _is(layout.UNSIGNED),
    "string": _is(layout.STRING),
    "number": _is_number,
    "double": _is(*_INTEGERS, *_FLOATS),
    "integer": _is(*_INTEGERS),
    "boolean": _is_boolean,
    "varbinary": _is(layout.BINARY),
    "scalar": _either(_is_old_scalar, _is_extension(_UUID, _DATETIME)),
    "decimal": _is_decimal,
    "uuid": _is_extension(_UUID),
    "datetime": _is_extension(_DATETIME),
    "interval": _is_extension(_INTERVAL),
    "array": _is(layout.ARRAY),
    "map": _is(layout.MAP),
    **{f"int{bits}": _is_between(-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": _unsigned_up_to((1 << bits) - 1) for bits in (8, 16, 32, 64)},
    "float32": _is(layout.FLOAT),
    "float64": _is(layout.DOUBLE),
}
"""Check of a value by the field's type."""
_DECIMALS: Final = {f"decimal{bits}": _has_digits(digits) for bits, digits in {32: 9, 64: 18, 128: 38, 256: 76}.items()}

FIELD_TYPES: Final = frozenset({*_BY_TYPE, *_DECIMALS})
"""All types that a field has in any version."""

_OLD_SCALAR: Final = "scalar before 2.10"


def _check_of(name: str, field: Field) -> Check:
    """Return the check of a field, by name: a type's, or one of earlier versions."""
    if name == _OLD_SCALAR:
        return _is_old_scalar
    return _DECIMALS[name](field) if name in _DECIMALS else _BY_TYPE[name]


def check_types(form: SpaceForm) -> None:
    """Raise ConfigurationError if the space has a field of an unknown type.

    Then nobody here knows what an UPDATE or UPSERT makes of the field, and images could be wrong without any sign of it.
    """
    for field in form.fields:
        if field.type not in FIELD_TYPES:
            raise ConfigurationError(
                f"the field {field.name!r} of space {form.name!r} (space id {form.space_id}) is of type {field.type!r}, which "
                "this version doesn't know, so it can't compute the rows after UPDATEs and UPSERTs",
                "Install a newer version. Until then leave the space out (spaces.exclude), or do without images "
                '(state.images = "none").',
            )


class Fitting:
    """Check of one format by the rules of one version of the server."""

    def __init__(self, form: SpaceForm, version: tuple[int, ...]) -> None:
        """Raises ConfigurationError for a field of an unknown type."""
        check_types(form)
        self._exact_count = form.field_count
        names = [_check_name(field, version) for field in form.fields]
        self._checks = [_check_of(name, field) for name, field in zip(names, form.fields, strict=True)]
        self._may_be_nil = [
            field.is_nullable or field.type == "any" or (field.has_default and version >= _DEFAULTS_SINCE)
            for field in form.fields
        ]
        # A nil may stand for the value of any field that may be nil, but only a nullable field may be missing.
        required = [place for place, field in enumerate(form.fields, 1) if not field.is_nullable]
        self._count_min = required[-1] if required else 0
        scales = [field.scale or 0 for field in form.fields]
        self.rules = self._exact_count, self._count_min, list(zip(names, self._may_be_nil, scales, strict=True))
        """The rules for the compiled row path (cdc/native/src/fitting.rs)."""

    def fits(self, tuple_: bytes) -> bool:
        """Return whether a tuple fits."""
        count, begin = layout.header(tuple_, 0)
        if count < self._count_min or (self._exact_count and count != self._exact_count):
            return False
        for check, may_be_nil in zip(self._checks[:count], self._may_be_nil, strict=False):
            end = layout.end_of(tuple_, begin)
            value = tuple_[begin:end]
            begin = end
            if not (may_be_nil if value[0] == layout.NIL else check(value)):
                return False
        return True


def _check_name(field: Field, version: tuple[int, ...]) -> str:
    if field.type == "double" and version < _INTEGERS_IN_DOUBLES_SINCE:
        return "float64"
    if field.type == "scalar" and version < _MORE_SCALARS_SINCE:
        return _OLD_SCALAR
    return field.type
