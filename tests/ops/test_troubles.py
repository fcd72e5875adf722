"""What is wrong and what to do: causes rather than effects, the worst first, and how long each has lasted."""

from __future__ import annotations

import time

import pytest

from cdc.ops.status import LIFELESS_SECONDS, Status
from cdc.ops.troubles import Trouble, TroubleLog, current
from cdc.ops.way import way
from cdc.positions.vclock import VClock
from cdc.registry.schema_ids import RegistryWait
from cdc.stream.commits.losses import LostTopic
from cdc.stream.moves.queues import Wait
from cdc.stream.reports.bucket_waits import BucketsState
from cdc.stream.reports.limbo_watch import OverdueQuorum
from cdc.stream.transactions.limbo import LimboState
from cdc.upstream.overview import Upstream

REFUSED = "127.0.0.1:9092/1: Connect to ipv4#127.0.0.1:9092 failed: Connection refused"


@pytest.fixture
def status() -> Status:
    found = Status("shop", state="streaming", upstream="a:3301", last_heard_at=time.monotonic())
    found.upstreams = (Upstream("a:3301", "following", vclock=VClock({1: 20}), headroom_rows=5),)
    found.kafka.commit_count = 3
    found.store_position = VClock()
    return found


def only(status: Status) -> Trouble:
    (found,) = current(status)
    assert found.remedy or not found.is_holding_up
    return found


def modes(status: Status) -> dict[str, str]:
    return {station.name: station.mode for station in way(status)}


WELL = {"source": "works", "quorum": "idle", "daemon": "works", "registry": "none", "kafka": "works", "store": "works"}


def test_all_is_well(status: Status) -> None:
    assert current(status) == []
    assert modes(status) == WELL


def test_a_lag_that_is_over_for_a_moment(status: Status) -> None:
    """As whenever all that has been received is committed, while the replica set has more."""
    status.recent_lag_seconds, status.checkpoint = 90.0, VClock({1: 20})
    assert current(status) == []
    status.master_vclock = VClock({1: 50})
    assert "was written 90 s ago" in only(status).sentence


def test_a_topic_was_deleted(status: Status) -> None:
    """Rows go on, so nothing stands still; but consumers lack some until somebody does something."""
    status.kafka.losses = (LostTopic("shop.users", ("users",), 7, 1_700_000_000_000),)
    found = only(status)
    assert (found.place, found.is_holding_up, found.loses_rows) == ("kafka", False, True)
    assert "the topic shop.users was deleted" in found.sentence
    assert "snapshot --config FILE users" in found.remedy
    assert modes(status) == WELL
    assert status.is_ready
    assert status.shown_error == found.sentence
    assert status.to_json()["lost_topics"][0]["remedy"] == found.remedy
    status.kafka.losses = tuple(LostTopic(f"shop.{number}", (), 7, 0) for number in range(1_000))
    assert len(current(status)) == len(status.to_json()["lost_topics"]) == 20


def test_kafka_stands_still(status: Status) -> None:
    status.kafka.trouble = f"{REFUSED} (after 0ms in state CONNECT, 1 identical error(s) suppressed)"
    status.kafka.backlog.submitted(time.monotonic() - 20, 0.0)
    found = only(status)
    assert (found.place, found.is_holding_up) == ("kafka", True)
    assert found.sentence.startswith("Kafka has committed nothing for 20 s, while changes wait")
    assert found.sentence.endswith(f"(its client reports: {REFUSED}). Nothing is lost")
    assert "min.insync.replicas" in found.remedy
    assert modes(status) == WELL | {"daemon": "waits", "kafka": "stands"}
    status.is_reading = False
    assert modes(status)["source"] == "waits", "it isn't to blame"


def test_kafka_is_away_from_a_quiet_daemon(status: Status) -> None:
    """Nothing waits, so there is no stall; the client's word is all there is."""
    status.kafka.trouble = REFUSED
    found = only(status)
    assert (found.place, found.is_holding_up) == ("kafka", False)
    assert modes(status) == WELL | {"kafka": "waits"}


def test_kafka_is_away_at_the_start(status: Status) -> None:
    status.state, status.error, status.error_remedy = "waiting for kafka", "Kafka doesn't answer. Start it.", "Start it."
    assert (only(status).sentence, only(status).remedy) == ("Kafka doesn't answer.", "Start it.")
    assert modes(status) == WELL | {"source": "idle", "daemon": "waits", "kafka": "stands"}


def test_the_master_is_away(status: Status) -> None:
    """A member that the error names isn't a second trouble."""
    status.state, status.error = "connecting", "can't connect to Tarantool at a:3301: refused"
    status.upstreams = (
        Upstream("a:3301", "unreachable", error="can't connect to Tarantool at a:3301: refused"),
        Upstream("b:3301", "gap", error="b:3301 has a gap"),
    )
    first, second = current(status)
    assert (first.place, first.is_holding_up, first.sentence) == ("source", True, status.error)
    assert "source.uris" in first.remedy
    assert (second.is_holding_up, second.sentence) == (False, "b:3301 can't be followed now (gap): b:3301 has a gap")
    assert modes(status) == WELL | {"source": "stands", "daemon": "waits", "kafka": "idle"}


def test_a_daemon_that_is_behind(status: Status) -> None:
    """Though nothing stands still: for whom, and not beside what holds everything up."""
    written_at = time.time() - 300
    status.kafka.backlog.submitted(time.monotonic(), written_at)
    status.row_path = "native"
    found = only(status)
    assert (found.place, found.is_holding_up) == ("daemon", False)
    assert found.sentence.startswith("what is published now was written 300 s ago, and the replica set has 20 rows more")
    assert "split the replica set" in found.remedy
    status.row_path = "python"
    assert "Python row path" in only(status).sentence
    status.is_reading = False
    assert (only(status).place, "commit time" in only(status).remedy) == ("kafka", True)
    status.state = "snapshot"
    assert current(status) == [], "its rows are as old as they are"


def test_a_quorum_is_waited_for(status: Status) -> None:
    """At first that is nothing to speak of, and later still no error."""
    began = time.time_ns() // 1000 - 12_000_000
    status.limbo = LimboState(2, 2, 100, 0, began, 1, 45)
    assert (current(status), modes(status)) == ([], WELL | {"quorum": "waits"})
    status.overdue_quorum = OverdueQuorum(1, 45, began, 2)
    found = only(status)
    assert (found.place, found.is_holding_up) == ("quorum", True)
    assert found.sentence.startswith("transaction 1:45 has been waiting for its quorum for 12 s, and 1 more after it")
    assert "box.info.synchro" in found.remedy
    assert "box.info.synchro" not in found.sentence
    assert modes(status) == WELL | {"quorum": "holds"}


def test_the_registry_refuses(status: Status) -> None:
    """Kafka commits nothing then, for lack of anything to commit."""
    status.registry_wait = RegistryWait("shop.users-value", "incompatible", "it isn't compatible", time.monotonic() - 30)
    status.kafka.backlog.submitted(time.monotonic() - 30, 0.0)
    found = only(status)
    assert (found.place, "compatible" in found.remedy) == ("registry", True)
    assert (modes(status)["registry"], modes(status)["kafka"]) == ("stands", "idle")


def test_a_daemon_that_failed(status: Status) -> None:
    status.state, status.error = "failed", "the disk is full"
    assert (only(status).place, modes(status)["daemon"], modes(status)["source"]) == ("daemon", "stands", "idle")


def test_the_followed_server_has_lost_logs(status: Status) -> None:
    status.upstreams = (Upstream("a:3301", "following", headroom_rows=-7),)
    assert only(status).sentence == "a:3301 no longer has the logs of 7 rows after the checkpoint"
    assert "source.on_gap" in only(status).remedy


def test_the_followed_server_would_refuse_the_next_connection(status: Status) -> None:
    """As after its password was changed there: the open connection goes on, so rows do, until it breaks."""
    status.upstreams = (Upstream("a:3301", "following", is_refused=True, error="Incorrect password for user 'cdc'"),)
    found = only(status)
    assert (found.place, found.is_holding_up, found.is_urgent, found.to_json()["is_urgent"]) == ("source", False, True, True)
    assert found.sentence.endswith("may end the daemon: Incorrect password for user 'cdc'")
    assert "source.password_file" in found.remedy
    assert (status.shown_error or "").endswith("Incorrect password for user 'cdc'")
    assert status.is_ready


def test_a_store_that_lags(status: Status) -> None:
    status.checkpoint, status.store_position = VClock({1: 20, 2: 5}), VClock({1: 17, 2: 5})
    assert next(station.text for station in way(status) if station.name == "store") == "3 rows behind Kafka"
    status.store_position = None
    assert modes(status)["store"] == "none"


def test_a_bucket_waits(status: Status) -> None:
    """Other rows go on, until so much waits that the stream isn't read."""
    wait = Wait(bucket_id=7, since_us=time.time_ns() // 1000 - 90_000_000, waits_for="s2")
    status.buckets = BucketsState((wait,), 1)
    assert current(status) == []
    status.buckets = BucketsState((wait,), 1, is_overdue=True)
    assert (only(status).kind, only(status).is_holding_up) == ("bucket", False)
    assert only(status).sentence.startswith("bucket 7 has been waiting for 90 s for the daemon of the shard 's2'")
    status.buckets = BucketsState((wait,), 1, is_overdue=True, is_full=True)
    assert only(status).is_holding_up


def test_how_long_each_has_lasted(status: Status) -> None:
    """Though its sentence changes; and what is over is kept for a while."""
    log = TroubleLog()
    status.kafka.trouble = REFUSED
    log.look(status, 100.0)
    status.kafka.trouble = "1/1 brokers are down"
    log.look(status, 105.0)
    assert log.since(only(status)) == 100.0
    assert log.past() == []
    status.kafka.trouble = None
    log.look(status, 110.0)
    (over,) = log.past()
    assert (over["since"], over["until"], over["sentence"]) == (100.0, 110.0, "Kafka's client reports: 1/1 brokers are down")
    for at in range(200, 260):
        status.error = "x" if at % 2 else None
        log.look(status, float(at))
    assert len(log.past()) == 20
    assert log.past()[0]["since"] == 257.0


def test_a_thread_that_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else it shows is from before."""
    status = Status("shop", state="streaming", turned_at=1.0)
    monkeypatch.setattr(time, "monotonic", lambda: 1.0 + LIFELESS_SECONDS)
    assert (status.stuck, current(status)) == (None, [])
    monkeypatch.setattr(time, "monotonic", lambda: 2.0 + LIFELESS_SECONDS)
    (trouble,) = current(status)
    assert (trouble.kind, trouble.is_holding_up, status.shown_error) == ("stuck", True, trouble.sentence)
    assert status.to_json()["is_stuck"]


def test_a_standby_that_gets_no_answer_from_kafka_is_no_idle_one() -> None:
    status = Status("shop", "standby", error="Kafka doesn't answer", is_standby_deaf=True)
    assert (only(status).place, modes(status)["kafka"]) == ("kafka", "stands")
