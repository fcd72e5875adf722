"""Options that commands share, and secret values that no message may show.

A value may come from a file (`@/run/secrets/kafka`) or from the environment (`$KAFKA_PASSWORD`), so that `ps` doesn't show it.
Such values, and values whose name contains password or the like, are `Secret` texts. `hide` removes them from every message.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from spark_jobs.contract.scales import decimal_scale
from spark_jobs.tables.formats import FORMATS

_SENSITIVE: Final = re.compile(
    r"(?i)password|passwd|secret|jaas|token|credential|access[._-]?key|api[._-]?key|\.key$|authorization"
)
_QUOTED: Final = re.compile(r'"((?:[^"\\]|\\.)+)"')
_PROPERTY: Final = re.compile(r"((?:[^\s=:\\]|\\.)+)\s*[=:\s]?\s*(.*)", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED: Final[Mapping[str, str]] = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}


class Secret(str):
    """Text that no message may show."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Return a placeholder instead of the text."""
        return "'***'"


def hide(text: str, options: argparse.Namespace) -> str:
    """Return the text with all secrets of the options replaced."""
    found = {form for secret in _secrets(vars(options)) for form in _forms(secret)}
    for form in sorted(found, key=len, reverse=True):
        text = text.replace(form, "***")
    return text


def secret(text: str) -> Secret:
    """Return a value that no message may show, given directly or as @FILE or $NAME. For `add_argument(type=…)`."""
    return Secret(_resolved(text))


def setting(text: str) -> tuple[str, str]:
    """Return the name and the value of NAME=VALUE, where VALUE may be @FILE or $NAME. For `add_argument(type=…)`.

    A value that begins with @ or $ itself has this character twice.
    """
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise argparse.ArgumentTypeError("an argument isn't NAME=VALUE")  # without the argument: it may be a secret
    return name, _secret_if_sensitive(name, _resolved(value))


def options_file(text: str) -> dict[str, str]:
    """Return the settings in a properties file for Kafka's clients. For `add_argument(type=…)`.

    The names in the file may have Spark's prefix `kafka.`, or lack it.
    """
    lines = re.sub(r"(?m)(?<!\\)((?:\\\\)*)\\\n[ \t]*", r"\1", _content(text)).splitlines()
    settings = {}
    for line in map(str.strip, lines):
        if not line or line[0] in "#!":
            continue
        found = _PROPERTY.fullmatch(line)
        if found is None:
            raise argparse.ArgumentTypeError(f"{text} has a line that isn't NAME=VALUE")
        name, value = map(_unescaped, found.groups())
        name = name if name.startswith("kafka.") or "." not in name else f"kafka.{name}"
        settings[name] = _secret_if_sensitive(name, value)
    return settings


def add_table_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the place of a command's tables. They become `location` of the options, a `Location`."""
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--path", help="path of the table (changelog), or of the tables, one folder per space (current)")
    where.add_argument(
        "--catalog",
        type=_schema,
        metavar="CATALOG.SCHEMA",
        help="schema of a catalog of the session (spark_catalog.lake) that contains the tables, instead of a path",
    )
    add_table_format(parser)
    parser.add_argument(
        "--table-template",
        default="{prefix}_{table}",
        metavar="TEXT",
        help="template for the names of tables in --catalog; {table} is the space, or the job's name for its only table"
        " (default: %(default)s)",
    )


def add_table_format(parser: argparse.ArgumentParser) -> None:
    """Add the option for the format of a command's tables."""
    parser.add_argument(
        "--table-format",
        choices=tuple(FORMATS),
        default=next(iter(FORMATS)),
        help="format of the tables: delta, or iceberg (version 3) (default: %(default)s)",
    )


def add_decimal_scale(parser: argparse.ArgumentParser) -> None:
    """Add --decimal-scale, which the jobs have that keep the forms from which typed columns are made."""
    parser.add_argument(
        "--decimal-scale",
        action="append",
        default=[],
        type=decimal_scale,
        metavar="SPACE[.FIELD]=DIGITS",
        help="number of digits behind the point of the space's decimals, or of one field, whose type says none: they get one"
        " column decimal(38,DIGITS) instead of two; repeatable",
    )


def add_unfit_values(parser: argparse.ArgumentParser) -> None:
    """Add --unfit-values, which the jobs have that write typed columns."""
    parser.add_argument(
        "--unfit-values",
        choices=("null", "fail"),
        default="null",
        help="what to do with a value that no column of its field can hold: leave the column null, as the row's text has the"
        " value, and count it; or end the job (default: %(default)s)",
    )


def add_kafka_options(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Add the options for the topics that a command reads. A command for which they aren't `required` can run without Kafka."""
    add = parser.add_argument
    add("--bootstrap-servers", required=required, metavar="HOST:PORT,…", help="the Kafka cluster")
    add("--prefix", required=required, help="the daemon's kafka.topic_prefix")
    add(
        "--spaces",
        default=".*",
        metavar="REGEX",
        help="read only spaces whose complete name, as written in the topic's name, matches this regular expression of Java"
        " (default: %(default)s)",
    )
    add(
        "--kafka-option",
        action="append",
        default=[],
        type=setting,
        metavar="NAME=VALUE",
        help='an option of Spark\'s Kafka source ("minPartitions=8", "kafka.security.protocol=SSL"); VALUE may be @FILE or'
        " $NAME of the environment, for secrets; repeatable",
    )
    add(
        "--kafka-options-file",
        default={},
        type=options_file,
        metavar="FILE",
        help="a properties file for Kafka's clients (security.protocol=…), as Kafka's own tools use it; --kafka-option takes"
        " precedence",
    )
    add(
        "--value-format",
        choices=("json", "avro"),
        default="json",
        help="the daemon's format.value (and format.key); with avro, records that are JSON are read, too (default: %(default)s)",
    )
    add("--registry", metavar="URL", help="the registry with the schemas of --value-format avro (format.registry.url)")
    add("--registry-user", metavar="NAME", help="a user who may read schemas")
    add("--registry-password", type=secret, metavar="TEXT", help="that user's password; @FILE or $NAME of the environment")
    add("--registry-ca", metavar="FILE", help="a file with the certificates that sign the registry's, also on Spark's workers")


def add_spark_options(parser: argparse.ArgumentParser, jars_variable: str) -> None:
    """Add the options for a command's Spark session."""
    add = parser.add_argument
    add("--master", help="Spark's master; by default local[*], and under spark-submit the master of that command")
    add("--jars-dir", metavar="PATH", help=f"a folder with the connectors' jars (or ${jars_variable})")
    add(
        "--spark-conf",
        action="append",
        default=[],
        type=setting,
        metavar="NAME=VALUE",
        help="a Spark setting; VALUE may be @FILE or $NAME of the environment; repeatable",
    )


def _secrets(value: object) -> Iterator[Secret]:
    if isinstance(value, Secret):
        yield value
    elif isinstance(value, Mapping):
        yield from _secrets(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _secrets(item)


def _forms(secret: Secret) -> Iterator[str]:
    """Yield the forms in which a message may show a secret: as it is, quoted in JSON, and texts quoted in it (a JAAS line)."""
    for text in (str(secret), *_QUOTED.findall(secret)):
        for form in (text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1], repr(text)[1:-1]):
            if form.strip():
                yield form


def _secret_if_sensitive(name: str, value: str) -> str:
    return Secret(value) if _SENSITIVE.search(name) else value


def _resolved(value: str) -> str:
    kind, rest = value[:1], value[1:]
    if kind not in ("@", "$"):
        return value
    if rest.startswith(kind):
        return rest
    if kind == "@":
        return Secret(_content(rest).removesuffix("\n").removesuffix("\r"))
    if rest not in os.environ:
        raise argparse.ArgumentTypeError(f"the environment has no variable {rest}")
    return Secret(os.environ[rest])


def _content(path: str) -> str:
    try:
        return Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it isn't UTF-8"
        raise argparse.ArgumentTypeError(f"{path} can't be read: {reason}") from None


def _unescaped(text: str) -> str:
    def one(found: re.Match[str]) -> str:
        escape = found[1]
        return chr(int(escape[1:], 16)) if len(escape) > 1 else _ESCAPED.get(escape, escape)

    return _ESCAPE.sub(one, text)


def _schema(text: str) -> tuple[str, ...]:
    parts = tuple(text.split("."))
    if len(parts) < 2 or not all(parts):
        raise argparse.ArgumentTypeError(f"{text!r} isn't CATALOG.SCHEMA; Spark's own catalog is spark_catalog")
    return parts
