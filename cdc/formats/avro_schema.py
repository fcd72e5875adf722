"""Schemas as Avro, with the properties by which Kafka Connect's converters find the types of Connect again."""

from __future__ import annotations

from typing import Any, Final

from cdc.events.json_values import encode
from cdc.formats.names import cleaned, cleaned_path
from cdc.formats.schemas import LongByText, Struct, StructField, Type
from cdc.formats.types import CONNECT_DECIMAL, UNSIGNED_DIGITS, VARIABLE_SCALE_DECIMAL, ValueType

_BASES: Final = {"int8": "int", "int16": "int", "int32": "int", "int64": "long"}
"""Avro's names of Connect's types; others have the same name."""


def avro_text(struct: Struct) -> str:
    """Return a struct's schema, as a registry gets it."""
    return encode(_Writer().struct(struct)).decode()


class _Writer:
    """One schema: a record is written where it occurs first, and then referred to by its name."""

    def __init__(self) -> None:
        self._written: set[str] = set()

    def struct(self, struct: Struct) -> Any:
        full_name = cleaned_path(struct.name)
        if full_name in self._written:
            return full_name
        self._written.add(full_name)
        namespace, _, name = full_name.rpartition(".")
        record: dict[str, Any] = {"type": "record", "name": name, "namespace": namespace}
        record["fields"] = [self._field(field) for field in struct.fields]
        if struct.version is not None:
            record["connect.version"] = struct.version
        return record | {"connect.name": full_name}

    def _field(self, field: StructField) -> dict[str, Any]:
        found = self._type(field.type)
        name: dict[str, Any] = {"name": cleaned(field.name)}
        if name["name"] != field.name:
            name["tarantool.name"] = field.name
        if not field.is_optional:
            return name | {"type": found}
        if field.default is None:
            return name | {"type": ["null", found], "default": None}
        # Avro's default is of the union's first type.
        return name | {"type": [found | {"connect.default": field.default}, "null"], "default": field.default}

    def _type(self, found: Type) -> Any:
        if isinstance(found, Struct):
            return self.struct(found)
        if isinstance(found, LongByText):
            return {"type": "map", "values": "long"}
        return self._scaled() if found.base == "scaled" else _simple(found)

    def _scaled(self) -> Any:
        if VARIABLE_SCALE_DECIMAL in self._written:
            return VARIABLE_SCALE_DECIMAL
        self._written.add(VARIABLE_SCALE_DECIMAL)
        namespace, _, name = VARIABLE_SCALE_DECIMAL.rpartition(".")
        return {
            "type": "record",
            "name": name,
            "namespace": namespace,
            "fields": [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}],
            "connect.version": 1,
            "connect.name": VARIABLE_SCALE_DECIMAL,
        }


def _simple(found: ValueType) -> Any:
    base = _BASES.get(found.base, found.base)
    properties: dict[str, Any] = {}
    if found.base in ("int8", "int16"):
        properties["connect.type"] = found.base
    if found.name == CONNECT_DECIMAL:
        properties |= {"scale": 0, "precision": UNSIGNED_DIGITS, "logicalType": "decimal"}
    if found.name:
        properties["connect.version"] = 1
    if found.parameters:
        properties["connect.parameters"] = dict(found.parameters)
    if found.name:
        properties["connect.name"] = found.name
    return {"type": base, **properties} if properties else base
