"""Schemas as JSON Schema (draft 7), with the properties by which Kafka Connect's converters find the types of Connect again."""

from __future__ import annotations

from typing import Any, Final

from cdc.events.json_values import encode
from cdc.formats.schemas import LongByText, Struct, StructField, Type
from cdc.formats.types import VARIABLE_SCALE_DECIMAL, ValueType

_BASES: Final = {
    **{f"int{bits}": {"type": "integer", "connect.type": f"int{bits}"} for bits in (8, 16, 32, 64)},
    "float": {"type": "number", "connect.type": "float32"},
    "double": {"type": "number", "connect.type": "float64"},
    "boolean": {"type": "boolean"},
    "string": {"type": "string"},
    "bytes": {"type": "string", "connect.type": "bytes"},
}


def document_text(struct: Struct) -> str:
    """Return a struct's schema, as a registry gets it."""
    writer = _Writer()
    whole = {"$schema": "http://json-schema.org/draft-07/schema#", **writer.struct(struct)}
    return encode(whole | ({"definitions": writer.definitions} if writer.definitions else {})).decode()


class _Writer:
    """One schema: the structs inside of it are definitions, as the one of rows occurs several times."""

    def __init__(self) -> None:
        self.definitions: dict[str, Any] = {}

    def struct(self, struct: Struct) -> dict[str, Any]:
        shown: dict[str, Any] = {"type": "object", "title": struct.name}
        if struct.version is not None:
            shown["connect.version"] = struct.version
        shown["properties"] = {field.name: self._field(field, place) for place, field in enumerate(struct.fields)}
        shown["required"] = [field.name for field in struct.fields if not field.is_optional]
        # Open objects couldn't get another field: what readers of the old schema made of it would be anything.
        return shown | {"additionalProperties": False}

    def _field(self, field: StructField, place: int) -> dict[str, Any]:
        found = self._type(field.type)
        if field.is_optional:
            found = {"oneOf": [{"type": "null"}, found]}
        elif "$ref" in found:
            found = {"allOf": [found]}  # what stands beside a reference is ignored
        shown = {**found, "connect.index": place}
        return shown if field.default is None else shown | {"default": field.default}

    def _type(self, found: Type) -> dict[str, Any]:
        if isinstance(found, Struct):
            name = found.name.rpartition(".")[2]
            if name not in self.definitions:
                self.definitions[name] = self.struct(found)
            return {"$ref": f"#/definitions/{name}"}
        if isinstance(found, LongByText):
            return {"type": "object", "connect.type": "map", "additionalProperties": _BASES["int64"]}
        return _scaled() if found.base == "scaled" else _simple(found)


def _scaled() -> dict[str, Any]:
    return {
        "type": "object",
        "title": VARIABLE_SCALE_DECIMAL,
        "connect.version": 1,
        "properties": {
            "scale": {**_BASES["int32"], "connect.index": 0},
            "value": {**_BASES["bytes"], "connect.index": 1},
        },
        "required": ["scale", "value"],
        "additionalProperties": False,
    }


def _simple(found: ValueType) -> dict[str, Any]:
    shown: dict[str, Any] = dict(_BASES[found.base])
    if found.name:
        shown |= {"title": found.name, "connect.version": 1}
    if found.parameters:
        shown["connect.parameters"] = dict(found.parameters)
    return shown
