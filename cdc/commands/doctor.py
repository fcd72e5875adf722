"""`tarantool-cdc doctor`: says what is wrong or will be, in order of harm, and what to change.

    check's findings ─┐
    what the running daemon shows of itself ─┤─▶ advice, the worst first ─▶ lines, or JSON
    what only the doctor looks at ───────────┘   (cdc.commands.doctor_looks)

It changes nothing, and disturbs no running daemon.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from cdc.commands import Say, doctor_looks
from cdc.commands.check import Examination, examine
from cdc.commands.doctor_looks import Advice, Harm
from cdc.commands.silence import explained
from cdc.config import Config
from cdc.daemon.http_settings import access_of
from cdc.errors import CdcError, RequestError
from cdc.ops.asking import SilentError, ask
from cdc.ops.troubles import REFUSED_REMEDY

_HEADINGS: Final = {
    Harm.LOSS: "rows are lost, or may be",
    Harm.STOP: "the daemon can't run, or stands still",
    Harm.WAIT: "the daemon waits",
    Harm.SOON: "not yet a problem",
    Harm.NOTE: "worth knowing",
}


def doctor(config: Config, say: Say, *, file: Path | None = None, as_json: bool = False, is_verbose: bool = False) -> bool:
    """Report the advice, also about the configuration's `file`, if that is given.

    Return whether nothing has to be changed now. Raises ConfigurationError as `check`.
    """
    facts: list[str] = []
    found = examine(config, lambda line: facts.append(str(line)))
    shown, refusal = _shown_by_daemon(config)
    is_running = shown is not None or refusal is not None or found.runs_already
    is_silent = found.is_silent or isinstance(refusal, SilentError)
    advice = [*_of_findings(found, is_running=is_running)]
    advice += _of_absence(config, found, advice, is_running=is_running or is_silent)
    if isinstance(refusal, SilentError):
        if not found.is_silent:
            advice.append(Advice(Harm.STOP, "http.listen", refusal.message, refusal.hint))
    elif refusal is not None:
        advice.append(Advice(Harm.NOTE, "http.listen", f"what the daemon shows isn't known: {refusal.message}", refusal.hint))
    told = list(advice)
    for each in _of_daemon(shown):
        if not any(_says(former, each) for former in told):
            # The daemon's own words have the consequence and the remedy, too.
            advice = [*(former for former in advice if former.sentence not in each.sentence), each]
    advice += doctor_looks.all_looks(config, found, shown)
    advice += doctor_looks.of_file(file) if file is not None else ()
    advice = list(dict.fromkeys(sorted(advice, key=lambda each: each.harm)))
    is_well = not any(each.harm <= Harm.WAIT for each in advice)
    if as_json:
        say(json.dumps({"name": config.name, "is_well": is_well, "advice": [each.to_json() for each in advice]}, indent=1))
        return is_well
    for line in readable(config.name, advice, is_running=is_running, is_silent=is_silent):
        say(line)
    for fact in facts if is_verbose else ():
        say(f"  {fact}")
    return is_well


def readable(name: str, advice: Iterable[Advice], *, is_running: bool, is_silent: bool = False) -> Iterator[str]:
    """Yield the lines for people."""
    advice = list(advice)
    urgent = sum(each.harm <= Harm.WAIT for each in advice)
    state = "stands still" if is_silent else "runs" if is_running else "doesn't run, or doesn't answer at http.listen"
    yield f"{name}: the daemon {state}; {urgent or 'nothing'} to change now, {len(advice) - urgent} to know"
    harm = None
    for number, each in enumerate(advice, 1):
        if each.harm is not harm:
            harm = each.harm
            yield ""
            yield f"{_HEADINGS[harm]}:"
        yield f"{number:>3}. {each.subject}: {each.sentence}"
        if each.remedy:
            yield f"     Change: {each.remedy}"


def _says(former: Advice, advice: Advice) -> bool:
    """Return whether one sentence is in the other, and the former isn't listed as less harmful.

    A finding of `check` has its remedy within its sentence, so it may be the longer one. If it is the shorter one, the daemon's
    words have to add nothing: neither harm nor a remedy.
    """
    if former.sentence in advice.sentence:
        return former.harm < advice.harm or (former.harm is advice.harm and not advice.remedy)
    return former.harm <= advice.harm and advice.sentence in former.sentence


def _of_absence(config: Config, found: Examination, others: Iterable[Advice], *, is_running: bool) -> Iterator[Advice]:
    """Yield advice about a daemon that has published and doesn't run. What of the other advice stops it comes first."""
    if is_running or found.stored.position is None:
        return
    # A finding says that another process publishes under the name; one of a standby counts as good news there.
    holder = next((finding.sentence for finding in found.findings if finding.key == "name"), None)
    if holder is None:
        sentence = "it doesn't run, so nothing is published since its checkpoint; nothing is lost while a member keeps the logs"
        start = "start it (`tarantool-cdc run`, or its service)"
        is_refused = any(advice.harm is Harm.STOP for advice in others)
        remedy = f"after what is said above, {start}" if is_refused else f"{start}; its log says why it ended"
        yield Advice(Harm.STOP, config.name, sentence, remedy)
    elif config.standby:
        sentence = (
            f"it doesn't run on this machine: {holder.removesuffix(': this one would be its standby')}, without this standby"
        )
        yield Advice(
            Harm.STOP,
            config.name,
            sentence,
            "start it here, so that it takes over when that one fails",
        )


def _of_findings(found: Examination, *, is_running: bool) -> Iterator[Advice]:
    # Where another member can be followed, one that can't does no harm yet.
    can_follow = any(member.contents is not None for member in found.members)
    addresses = {member.candidate.answer.address for member in found.members}
    members = addresses if can_follow else set()
    for finding in found.findings:
        if finding.is_well:
            continue
        if finding.loses_rows:
            harm = Harm.LOSS
        elif not finding.is_failure:
            harm = Harm.NOTE
        else:
            # What stops a start doesn't concern a daemon that has started.
            harm = Harm.WAIT if finding.may_heal else Harm.STOP
            is_past = harm is Harm.STOP and is_running and not (finding.is_silence or finding.is_of_running)
            if is_past and finding.key in addresses - members:
                # Without a member to follow, the running daemon ends with its connection.
                yield Advice(Harm.STOP, finding.key, finding.sentence, REFUSED_REMEDY)
                continue
            harm = Harm.SOON if finding.key in members or is_past else harm
        yield Advice(harm, finding.key, finding.sentence)


def _of_daemon(shown: dict[str, Any] | None) -> Iterator[Advice]:
    for trouble in shown["troubles"] if shown is not None else ():
        harm = Harm.WAIT if trouble["is_holding_up"] else Harm.SOON
        # A daemon of an older version doesn't report these.
        harm = Harm.LOSS if trouble.get("loses_rows") else Harm.STOP if trouble.get("is_urgent") else harm
        yield Advice(harm, trouble["place"], trouble["sentence"], trouble["remedy"])


def _shown_by_daemon(config: Config) -> tuple[dict[str, Any] | None, CdcError | None]:
    """Return what the running daemon's page shows, or its refusal, or its silence; neither if there is none."""
    try:
        with explained(config):
            found = ask(config.name, config.http.address, "/page/state", access=access_of(config))
    except (RequestError, SilentError) as error:
        return None, error
    except CdcError:
        return None, None
    return (found if "troubles" in found else None), None
