"""What the doctor advises: the worst first, each with what to change, and nothing for a daemon that is well."""

from __future__ import annotations

import json
import resource
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdc.commands import doctor as command
from cdc.commands import doctor_looks
from cdc.commands.check import Examination
from cdc.commands.check_members import Contents, Examined
from cdc.commands.check_start import Finding
from cdc.commands.doctor import doctor
from cdc.commands.doctor_looks import Advice, Harm
from cdc.config import Config, parse
from cdc.daemon.start import supposed_before
from cdc.errors import CdcError, ConfigurationError, RequestError
from cdc.kafka.topic_settings import Setting
from cdc.ops.asking import SilentError
from cdc.ops.troubles import REFUSED_REMEDY, STORE_REMEDY, STORE_REMOVED
from cdc.positions.position import Position, SnapshotState
from cdc.positions.vclock import VClock
from cdc.protocol.ballot import Ballot
from cdc.stream.commits.checkpoint import Checkpoint
from cdc.upstream.rehearsal import Candidate
from cdc.upstream.selection import Answer
from tests.fakes.master import REPLICASET


def config(tmp_path: Path, **sections: dict[str, Any]) -> Config:
    values: dict[str, Any] = {
        "name": "shop",
        "source": {"uris": ["cdc:s@a:3301"]},
        "kafka": {"bootstrap_servers": "k:9092", "topic_prefix": "shop"},
        "state": {"path": str(tmp_path / "state"), "images": "none"},
    }
    for name, section in sections.items():
        values[name] = {**values.get(name, {}), **section}
    return parse(values, "the test")


def examined(settings: Config, gc_vclock: VClock, version: str = "2.6.0") -> Examination:
    """A member at {1: 100} that keeps logs from `gc_vclock`, and a checkpoint at {1: 90}."""
    position = Position(VClock({1: 90}), snapshot=SnapshotState(1, is_complete=True), replicaset_uuid=REPLICASET)
    stored = Checkpoint(position=position)
    ballot = Ballot(is_read_only=False, is_ready=True, vclock=VClock({1: 100}), gc_vclock=gc_vclock)
    member = Examined(Candidate(Answer("a:3301", ballot, version)))
    return Examination(stored=stored, known=supposed_before(settings, stored, None), members=[member])


def shown(**upstream: Any) -> dict[str, Any]:
    return {"status": {"upstream": {"address": "a:3301", **upstream}}, "newest": {"rows_per_second": 10.0}, "troubles": []}


def test_logs_that_reach_far_enough(tmp_path: Path) -> None:
    settings = config(tmp_path)
    assert list(doctor_looks.of_logs(settings, examined(settings, VClock()), shown())) == []
    assert list(doctor_looks.of_logs(settings, examined(settings, VClock({1: 40})), None)) == [], (
        "nobody knows how fast it writes"
    )


def test_logs_that_end_soon(tmp_path: Path) -> None:
    settings = config(tmp_path)
    (found,) = doctor_looks.of_logs(settings, examined(settings, VClock({1: 30})), shown())
    assert (found.harm, found.subject) == (Harm.SOON, "a:3301")
    assert "keeps the logs of 60 rows before the checkpoint; at the present 10 rows/s" in found.sentence
    assert "away for 0.1 minutes" in found.sentence
    assert "checkpoint_count" in found.remedy
    assert "registered" in found.remedy


def test_logs_that_are_gone(tmp_path: Path) -> None:
    settings = config(tmp_path)
    (found,) = doctor_looks.of_logs(settings, examined(settings, VClock({1: 95})), None)
    assert (found.harm, "the logs of 5 rows after the checkpoint are gone" in found.sentence) == (Harm.LOSS, True)
    assert found.remedy.startswith("nothing has to be changed for this one: `run` takes a snapshot")
    settings = config(tmp_path, source={"on_gap": "fail"})
    (found,) = doctor_looks.of_logs(settings, examined(settings, VClock({1: 95})), None)
    assert found.remedy.startswith('set source.on_gap = "resnapshot"')


@pytest.mark.parametrize(
    ("ahead", "text"), [(None, None), (0.4, None), (-1.9, None), (30.0, "30.0 s ahead of"), (-3.0, "3.0 s behind")]
)
def test_clocks(ahead: float | None, text: str | None) -> None:
    found = list(doctor_looks.of_clock(shown(clock_ahead_seconds=ahead)))
    assert [text in each.sentence for each in found if text] == ([True] if text else [])
    assert bool(found) == bool(text)
    assert list(doctor_looks.of_clock(None)) == []


@pytest.mark.parametrize(
    ("version", "is_proven"), [("2.6.0", True), ("2.11.9-0-gabc", True), ("3.4.1", False), ("4.0.0-alpha1", False)]
)
def test_versions(tmp_path: Path, version: str, is_proven: bool) -> None:
    found = list(doctor_looks.of_versions(examined(config(tmp_path), VClock(), version)))
    assert (not found) == is_proven
    assert all(version in each.sentence for each in found)


def topic(replicas: list[int], in_sync: list[int]) -> Any:
    return SimpleNamespace(partitions={0: SimpleNamespace(replicas=replicas, isrs=in_sync)})


def test_replicas(tmp_path: Path) -> None:
    def of(topics: dict[str, Any]) -> list[Advice]:
        return list(doctor_looks.of_replicas(config(tmp_path), cast(Any, SimpleNamespace(topics=topics))))

    assert of({"shop.users": topic([1, 2, 3], [1, 2, 3]), "other": topic([1], [1])}) == []
    single, short = of({"shop.users": topic([1], [1]), "__transaction_state": topic([1, 2], [1]), "shopping": topic([1], [1])})
    assert single.sentence.startswith("1 topics have one replica (shop.users)")
    assert short.sentence.startswith("1 topics have replicas that aren't in sync (__transaction_state)")


def test_records_that_expire() -> None:
    kept = {"cleanup.policy": Setting("compact"), "retention.ms": Setting("1000")}
    forever = {"cleanup.policy": Setting("delete"), "retention.ms": Setting("-1")}
    brief = {"cleanup.policy": Setting("compact,delete"), "retention.ms": Setting("86400000")}
    assert list(doctor_looks.of_retention({"a": kept, "b": forever, "c": {}})) == []
    (found,) = doctor_looks.of_retention({"a": kept, "b": brief})
    assert "records of 1 topics expire, the first after 1.0 days (b)" in found.sentence


def test_secrets(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.touch(0o600)
    settings = config(tmp_path, http={"tokens_file": str(file), "listen": "0.0.0.0:8085"})
    (open_address,) = doctor_looks.of_secrets(settings)
    assert "0.0.0.0 can be reached from elsewhere" in open_address.sentence
    file.chmod(0o644)
    assert {each.subject for each in doctor_looks.of_secrets(settings)} == {"http.tokens_file", "http.listen"}
    safe = config(tmp_path, http={"listen": "0.0.0.0:8085", "tls_certificate": "pem"})
    assert list(doctor_looks.of_secrets(safe)) == []
    assert list(doctor_looks.of_secrets(config(tmp_path, http={"listen": "::1:8085"}))) == []


@pytest.mark.parametrize(
    ("line", "is_secret"),
    [
        ('uris = ["cdc:secret@a:3301"]', True),
        ('uris = ["a:3301"]\nuser = "cdc"\npassword_file = "p"', False),
        ('[kafka.properties]\n"sasl.password" = "x"', True),
        ('[http]\nlisten = "::1:8085"\ntokens_file = "t"', False),
        ('[http]\ntoken = "0123456789abcdef"', True),
    ],
)
def test_a_configuration_with_secrets_that_others_may_read(tmp_path: Path, line: str, is_secret: bool) -> None:
    file = tmp_path / "cdc.toml"
    file.write_text(line)
    file.chmod(0o644)
    assert [each.subject for each in doctor_looks.of_file(file)] == ([str(file)] if is_secret else [])
    file.chmod(0o600)
    assert list(doctor_looks.of_file(file)) == []


def test_few_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))
    assert "1024 open files" in next(
        each.sentence for each in doctor_looks.of_machine(config(tmp_path)) if each.subject == "ulimit -n"
    )


FINDINGS = [
    Finding("state.path", "there are 5 MiB free", is_failure=False),
    Finding("kafka", "it doesn't answer", may_heal=True),
    Finding("shop.users", "it was deleted", is_failure=False, loses_rows=True),
    Finding("spaces.include", "it matches nothing"),
    Finding("name", "it is this one", is_failure=False, is_well=True),
]


def advised(
    monkeypatch: pytest.MonkeyPatch,
    settings: Config,
    findings: list[Finding],
    page: dict[str, Any] | None,
    *,
    refusal: CdcError | None = None,
    stored: Checkpoint | None = None,
    members: Sequence[Examined] = (),
    **how: Any,
) -> tuple[bool, list[str]]:
    def examine(_: Config, tell: Any) -> Examination:
        for finding in findings:
            tell(finding)
        tell("a fact")
        return Examination(findings=findings, stored=stored or Checkpoint(), members=list(members))

    def ask(*_: Any, **__: Any) -> dict[str, Any]:
        if page is None:
            raise refusal or ConfigurationError("no daemon answers")
        return page

    monkeypatch.setattr(command, "examine", examine)
    monkeypatch.setattr(command, "ask", ask)
    monkeypatch.setattr(doctor_looks, "of_machine", lambda _: iter(()))
    lines: list[str] = []
    return doctor(settings, lines.append, **how), lines


def test_the_worst_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    is_well, lines = advised(monkeypatch, config(tmp_path), FINDINGS, None)
    assert not is_well
    assert lines[0].endswith("doesn't run, or doesn't answer at http.listen; 3 to change now, 1 to know")
    assert [line.split(":")[0].strip() for line in lines if line.strip()[:1].isdigit()] == [
        "1. shop.users",
        "2. spaces.include",
        "3. kafka",
        "4. state.path",
    ]
    assert not [line for line in lines if "a fact" in line]
    assert "  a fact" in advised(monkeypatch, config(tmp_path), FINDINGS, None, is_verbose=True)[1]


def test_what_the_running_daemon_shows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With its own remedies; what only a start would mind can wait."""
    page = shown()
    page["troubles"] = [
        {"place": "kafka", "is_holding_up": True, "sentence": "no commit for 20 s", "remedy": "check the brokers"}
    ]
    is_well, lines = advised(monkeypatch, config(tmp_path), [FINDINGS[3]], page)
    assert not is_well
    assert lines[0] == "shop: the daemon runs; 1 to change now, 1 to know"
    assert lines[3:5] == ["  1. kafka: no commit for 20 s", "     Change: check the brokers"]
    assert lines[6] == "not yet a problem:"


def test_a_daemon_that_does_not_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where it has published, that it stands still is the first to be told; not so before its first start."""
    ran = Checkpoint(position=Position(VClock({1: 90})))
    is_well, lines = advised(monkeypatch, config(tmp_path), [], None, stored=ran)
    assert not is_well
    assert lines[0] == "shop: the daemon doesn't run, or doesn't answer at http.listen; 1 to change now, 0 to know"
    assert lines[3].startswith("  1. shop: it doesn't run, so nothing is published")
    assert advised(monkeypatch, config(tmp_path), [], shown(), stored=ran)[0]
    assert advised(monkeypatch, config(tmp_path), [], None)[0], "it has never run"


def test_a_standby_that_does_not_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The other one is named: it publishes, and nobody would take over."""
    ran = Checkpoint(position=Position(VClock({1: 90})))
    settings = config(tmp_path).model_copy(update={"standby": True})
    found = "a daemon 'shop' is running on vm as process 7: this one would be its standby"
    is_well, lines = advised(monkeypatch, settings, [Finding("name", found, is_failure=False, is_well=True)], None, stored=ran)
    assert not is_well
    assert "a daemon 'shop' is running on vm as process 7, without this standby" in lines[3]
    taken = Finding("name", "a daemon 'shop' is running on vm as process 7. Stop that one first")
    _, lines = advised(monkeypatch, config(tmp_path), [taken], None, stored=ran)
    assert lines[0].endswith("1 to change now, 0 to know"), "to start it would be refused"


def test_what_ends_the_daemon_at_its_next_reconnect(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Rows go on, and it is to be changed now all the same."""
    page = shown()
    page["troubles"] = [
        {"place": "source", "is_holding_up": False, "is_urgent": True, "sentence": "a would refuse", "remedy": "mend it"}
    ]
    is_well, lines = advised(monkeypatch, config(tmp_path), [], page)
    assert not is_well
    assert lines[0] == "shop: the daemon runs; 1 to change now, 0 to know"


def test_the_followed_member_that_would_refuse_the_daemon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Told once, as to be changed now, whether the daemon has noticed it or only `check`: the next reconnect ends the daemon."""
    denied = Finding("a:3301", "the password isn't the user's")
    member = Examined(Candidate(Answer("a:3301")), stops_run=True)
    noticed = shown()
    noticed["troubles"] = [
        {
            "place": "source",
            "is_holding_up": False,
            "is_urgent": True,
            "sentence": "a:3301 would refuse a new connection: the password isn't the user's",
            "remedy": REFUSED_REMEDY,
        }
    ]
    for page in (noticed, shown()):
        is_well, lines = advised(monkeypatch, config(tmp_path), [denied], page, members=[member])
        assert not is_well
        assert lines[0] == "shop: the daemon runs; 1 to change now, 0 to know"
        assert "the password isn't the user's" in lines[3]
        assert lines[4] == f"     Change: {REFUSED_REMEDY}"
    other = Examined(Candidate(Answer("b:3301")), Contents())
    is_well, _ = advised(monkeypatch, config(tmp_path), [denied], shown(), members=[member, other])
    assert is_well, "the other one would be followed"


def test_the_cause_comes_before_the_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ran = Checkpoint(position=Position(VClock({1: 90})))
    denied = Finding("a:3301", "the password isn't the user's")
    _, lines = advised(monkeypatch, config(tmp_path), [denied], None, stored=ran)
    assert lines[3] == "  1. a:3301: the password isn't the user's"
    assert lines[4].startswith("  2. shop: it doesn't run")
    assert lines[5] == "     Change: after what is said above, start it (`tarantool-cdc run`, or its service)"


def test_a_trouble_that_check_finds_too_is_told_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """check has the remedy within its sentence. What is less harmful there doesn't hide what holds the daemon up."""
    page = shown()
    page["troubles"] = [{"place": "source", "is_holding_up": True, "sentence": "a doesn't answer.", "remedy": "Start it."}]
    finding = Finding("a:3301", "a doesn't answer. Start it.", may_heal=True)
    _, lines = advised(monkeypatch, config(tmp_path), [finding], page)
    assert lines[0] == "shop: the daemon runs; 1 to change now, 0 to know"
    _, lines = advised(monkeypatch, config(tmp_path), [replace(finding, is_failure=False)], page)
    assert lines[0] == "shop: the daemon runs; 1 to change now, 1 to know"


def test_a_running_daemon_that_refuses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It runs: what only a start would mind can wait, and that more could be known is told."""
    settings = config(tmp_path)
    refusal = RequestError("127.0.0.1:8085 refuses: this needs a token with the role view", "Run it as the daemon's user.")
    is_well, lines = advised(monkeypatch, settings, [FINDINGS[3]], None, refusal=refusal)
    assert is_well
    assert lines[0] == "shop: the daemon runs; nothing to change now, 2 to know"
    (line,) = [number for number, line in enumerate(lines) if "refuses: this needs a token" in line]
    assert lines[line + 1] == "     Change: Run it as the daemon's user."


def test_a_running_daemon_that_is_frozen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It has to be ended, or let go on, now; whether `check` has found that, or only the doctor, as Kafka is away."""
    refusal = SilentError("the daemon 'shop' runs, and doesn't answer: its process 7", "`kill -9 7`")
    finding = Finding("name", f"{refusal.message}. {refusal.hint}", is_silence=True)
    for findings in ([finding], []):
        is_well, lines = advised(monkeypatch, config(tmp_path), findings, None, refusal=refusal)
        assert not is_well
        assert lines[0] == "shop: the daemon stands still; 1 to change now, 0 to know"
        assert "its process 7" in lines[3]
        assert "`kill -9 7`" in "".join(lines[3:])


def test_a_running_daemon_whose_store_was_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Told once, by `check` and by the daemon."""
    page = shown()
    page["troubles"] = [
        {"place": "store", "is_holding_up": False, "is_urgent": True, "sentence": STORE_REMOVED, "remedy": STORE_REMEDY}
    ]
    finding = Finding("state.path", f"{STORE_REMOVED}. {STORE_REMEDY}", is_of_running=True)
    is_well, lines = advised(monkeypatch, config(tmp_path), [finding], page)
    assert not is_well
    assert lines[0] == "shop: the daemon runs; 1 to change now, 0 to know"


def test_a_daemon_that_is_well(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert advised(monkeypatch, config(tmp_path), [FINDINGS[4]], shown()) == (
        True,
        ["shop: the daemon runs; nothing to change now, 0 to know"],
    )


def test_for_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    is_well, lines = advised(monkeypatch, config(tmp_path), [FINDINGS[2]], None, as_json=True)
    assert not is_well
    assert json.loads("\n".join(lines)) == {
        "name": "shop",
        "is_well": False,
        "advice": [{"harm": "loss", "subject": "shop.users", "sentence": "it was deleted", "remedy": ""}],
    }


def test_a_member_that_is_away_beside_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does no harm yet, and is told once, though the running daemon tells of it, too."""
    settings = config(tmp_path)
    away = Finding("b:3301", "can't connect", may_heal=True)
    page = shown()
    page["troubles"] = [{"place": "source", "is_holding_up": False, "sentence": "b:3301: can't connect", "remedy": ""}]
    members = [Examined(Candidate(Answer("b:3301"))), Examined(Candidate(Answer("a:3301")), Contents())]
    found = Examination(findings=[away], members=members)
    monkeypatch.setattr(command, "examine", lambda *_: found)
    monkeypatch.setattr(command, "ask", lambda *_, **__: page)
    monkeypatch.setattr(doctor_looks, "of_machine", lambda _: iter(()))
    lines: list[str] = []
    assert doctor(settings, lines.append)
    assert lines[2:] == ["not yet a problem:", "  1. b:3301: can't connect"]
