"""A registry's text of an Avro schema → the schema with complete names.

Registries needn't give a schema back as it was registered. Confluent's writes it in the shortest form: a record inside another
one lacks its `namespace` if it is that of the outer one, and is referred to by its own name alone.
"""

from __future__ import annotations

import json
from typing import Any, Final

_SIMPLE: Final = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_NAMED: Final = ("record", "error", "enum", "fixed")


def schema_of(text: str) -> Any:
    """Return the schema in a text, with the namespaces of all records, and with complete names where it refers to one."""
    return _complete(json.loads(text), "")


def is_record(schema: Any) -> bool:
    """Return whether a schema is that of a record, as the daemon's all are."""
    return isinstance(schema, dict) and schema.get("type") == "record"


def full_name(schema: Any) -> str:
    """Return the name by which others refer to a record of `schema_of`."""
    return f"{schema['namespace']}.{schema['name']}" if schema["namespace"] else str(schema["name"])


def _complete(schema: Any, namespace: str) -> Any:
    """Return a part of a schema with complete names. `namespace` is that of the record around it."""
    if isinstance(schema, list):
        return [_complete(one, namespace) for one in schema]
    if isinstance(schema, str):
        is_whole = schema in _SIMPLE or "." in schema or not namespace
        return schema if is_whole else f"{namespace}.{schema}"
    kind = schema["type"]
    if kind in _NAMED:
        outer, _, name = schema["name"].rpartition(".")
        namespace = outer or schema.get("namespace", namespace)
        schema = {**schema, "name": name, "namespace": namespace}
    if kind in ("record", "error"):
        return {**schema, "fields": [{**one, "type": _complete(one["type"], namespace)} for one in schema["fields"]]}
    inner = {"array": "items", "map": "values"}.get(kind) if isinstance(kind, str) else "type"
    return schema if inner is None else {**schema, inner: _complete(schema[inner], namespace)}
