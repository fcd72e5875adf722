"""The man page and the completions of shells, in config/: made from the command line's own parser."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import shtab

from cdc import cli

_DIRECTORIES = frozenset({"DIR"})


def completion(shell: str) -> str:
    """The completion script of a shell."""
    parser = cli._parser()
    for _, command in _commands(parser):
        for action in command._actions:
            if action.type is Path:
                action.complete = shtab.DIRECTORY if action.metavar in _DIRECTORIES else shtab.FILE  # type: ignore[attr-defined]
    return shtab.complete(parser, shell=shell)


def manual() -> Iterator[str]:
    """The lines of the man page."""
    parser = cli._parser()
    yield '.\\" made from the code: pytest tests/test_manual.py --update-golden'
    yield ".TH TARANTOOL-CDC 1"
    yield ".SH NAME"
    yield f"tarantool\\-cdc \\- {_roff((parser.description or '').rstrip('.'))}"
    yield ".SH SYNOPSIS"
    yield ".B tarantool\\-cdc"
    yield ".I COMMAND"
    yield "[\\fIoptions\\fR]"
    yield ".SH COMMANDS"
    for name, command in _commands(parser):
        yield f".SS {_roff(name)}"
        yield _roff(f"{(command.description or '').rstrip('.')}.")
        for action in command._actions:
            if action.help != argparse.SUPPRESS and not isinstance(action, argparse._HelpAction):
                yield ".TP"
                yield _heading(action)
                yield _roff(action.help or "")
    yield ".SH EXIT STATUS"
    yield "0: success. 1: an error, whose sentence is on stderr. 2: wrong usage."
    yield ".SH ENVIRONMENT"
    yield ".TP"
    yield "\\fBTARANTOOL_CDC__\\fISECTION\\fB__\\fIKEY\\fR"
    yield "Overrides a key of the configuration file, as in TARANTOOL_CDC__KAFKA__TOPIC_PREFIX=shop."
    yield ".TP"
    yield "\\fBTARANTOOL_CDC_PURE\\fR"
    yield "1: the Python row path, not the compiled one."
    yield ".SH SEE ALSO"
    yield "docs/operations.md and docs/configuration.md in the sources."


def _commands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    (actions,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    yield from actions.choices.items()


def _heading(action: argparse.Action) -> str:
    """An argument as a usage line shows it: options in bold, what they take in italics."""
    takes = action.nargs != 0
    place = str(action.metavar or "|".join(action.choices or ()) or action.dest.upper()) if takes else ""
    value = f"\\fI{_roff(place)}\\fR" if place else ""
    if not action.option_strings:
        return value
    return ", ".join(f"\\fB{_roff(option)}\\fR" for option in action.option_strings) + (f" {value}" if value else "")


def _roff(text: str) -> str:
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("%%", "%")
    return f"\\&{text}" if text[:1] in (".", "'") else text
