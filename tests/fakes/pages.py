"""Pages of docs/ that are made from the code, so that they can't say anything else: configuration and metrics.

`pytest tests/test_docs.py --update-golden` writes them.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any, Final, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from cdc import config
from cdc.config.fleet import FleetSection, ShardSection
from cdc.ops import fleet_page
from cdc.ops.metrics import COUNTERS, GAUGES, LABELLED, UPSTREAM_GAUGES
from tests.fakes.marked import MARK, first_lines

_MEBIBYTE: Final = 1024 * 1024


def _docstrings(section: type[BaseModel]) -> dict[str, str]:
    """The string behind each field."""
    body = ast.parse(inspect.getsource(section).strip()).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, behind in zip(body.body, body.body[1:], strict=False):
        match field, behind:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str() as text)):
                found[name] = " ".join(text.split())
    return found


def _default(field: FieldInfo) -> str:
    match field.default:
        case value if value is PydanticUndefined:
            return "must be given"
        case None:
            return ""
        case bool() as value:
            return f"`{str(value).lower()}`"
        case int() as value if value >= _MEBIBYTE and value % _MEBIBYTE == 0:
            return f"`{value}` ({value // _MEBIBYTE} MiB)"
        case PurePath() as value:
            return f'`"{value}"`'
        case str() as value:
            return f'`"{value}"`'
        case list() as value:
            return "`[" + ", ".join(f'"{item}"' for item in value) + "]`"
        case value:
            return f"`{value}`"


def _choices(field: FieldInfo) -> str:
    values = getattr(field.annotation, "__args__", ())
    words = [value for value in values if isinstance(value, str)]
    return ", ".join(f"`{word}`" for word in words if word != field.default)


def _sections(name: str, section: Any) -> Iterator[tuple[str, Any]]:
    """A section and those inside of it."""
    if isinstance(section, type) and issubclass(section, BaseModel):
        yield name, section
        for key, field in section.model_fields.items():
            yield from _sections(f"{name}.{key}", field.annotation)
    elif get_origin(section) is list and isinstance(get_args(section)[0], type) and issubclass(get_args(section)[0], BaseModel):
        yield f"[{name}]", get_args(section)[0]


def configuration() -> Iterator[str]:
    """All keys by section, with defaults, what else may stand there, and what they mean."""
    yield from first_lines("configuration.md")
    yield MARK
    fields = [(key, field.annotation) for key, field in config.Config.model_fields.items()]
    fleets = [("fleet", FleetSection), ("fleet.shards.NAME", ShardSection)]
    for name, section in (one for key, kind in [*fields, *fleets] for one in _sections(key, kind)):
        texts = _docstrings(section)
        yield ""
        yield f"## `[{name}]`"
        yield ""
        yield (section.__doc__ or "").strip()
        yield ""
        yield "| key | default | or | meaning |"
        yield "|---|---|---|---|"
        for key, value in section.model_fields.items():
            if isinstance(value.default, BaseModel):
                continue  # it has a table of its own
            text = texts[key].replace("|", "\\|")
            yield f"| `{key}` | {_default(value)} | {_choices(value)} | {text} |"


def metrics() -> Iterator[str]:
    """All that /metrics shows."""
    yield from first_lines("metrics.md")
    yield MARK
    yield ""
    yield "| metric | labels | meaning |"
    yield "|---|---|---|"
    for name, (text, _) in COUNTERS.items():
        yield f"| `{name}_total` | | {text} |"
    for name, (text, _) in GAUGES.items():
        yield f"| `{name}` | | {text} |"
    for name, (text, _) in UPSTREAM_GAUGES.items():
        yield f"| `{name}` | `upstream` | {text} |"
    for name, (_, text) in fleet_page.METRICS.items():
        yield f"| `{name}` | `shard` | {text} (of the process of a fleet) |"
    for name, (text, labels) in LABELLED.items():
        yield f"| `{name}` | {', '.join(f'`{label}`' for label in labels)} | {text} |"
