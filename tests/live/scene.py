"""A master, a broker and a daemon between them, and what must hold of what came out."""

from __future__ import annotations

import contextlib
import itertools
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException

from cdc.local.interface import KafkaServer, TarantoolServer
from tests.live import replica
from tests.live.daemon import DaemonProcess, Settings
from tests.live.proxy import Proxy, Straight
from tests.live.stream import Stream, distinct, parse, partial
from tests.live.topics import Look, TopicReader
from tests.live.waiting import PATIENCE_SECONDS, wait_for
from tests.live.workload import Workload

_LOOK_PAUSE_SECONDS = 0.05


@dataclass
class Scene:
    """What a test plays with. `close` ends what it started itself."""

    directory: Path
    tarantool: TarantoolServer
    kafka: KafkaServer
    seed: int
    prefix: str = field(default_factory=lambda: f"live-{uuid.uuid4().hex[:12]}")
    _exits: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.workload = Workload(self.tarantool, self.seed)
        self.daemon = self.new_daemon()

    def new_daemon(self, name: str = "", **sections: dict[str, Any]) -> DaemonProcess:
        """A daemon of this scene's, not started yet; `sections` are merged into its settings."""
        number = next(self._numbers)
        settings: Settings = {
            "source": {"uris": [self.tarantool.uri], "replication_timeout_ms": 500},
            "kafka": {
                "bootstrap_servers": self.kafka.bootstrap_servers,
                "topic_prefix": self.prefix,
                # Enough to be several; each is made, opens files and gets markers, which is most of what a broker does here.
                "partitions": 2,
                # A killed daemon's open transaction keeps readers waiting until the next start, or for so long.
                "properties": {"transaction.timeout.ms": 15_000},
            },
            "state": {"path": str(self.directory / f"state-{number}")},
            "log": {"format": "console"},
        }
        for section, values in sections.items():
            settings.setdefault(section, {}).update(values)
        daemon = DaemonProcess(self.directory / f"daemon-{number}", name or self.prefix, settings)
        daemon.master_crash = self._crash
        self._exits.callback(daemon.close)
        return daemon

    def _crash(self) -> str:
        """What the master's log says of a crash that nobody made: an old server does that now and then under such work."""
        said = "" if self.tarantool.is_running else self.tarantool.log_tail(60)
        return said if "Segmentation fault" in said else ""

    def reader(self, *, committed: bool = True) -> TopicReader:
        """A new reader of all of the daemon's topics."""
        return self._exits.enter_context(TopicReader(self.kafka.bootstrap_servers, self.prefix, committed=committed))

    def proxy(self, course: Callable[[], Straight] = Straight, on_ack: Callable[[dict[int, int]], None] | None = None) -> Proxy:
        """Put a proxy between the master and the daemon, which must not run yet."""
        proxy = self._exits.enter_context(Proxy(self.tarantool.port, course, on_ack))
        # The connections that a proxy counts and spoils are those that follow.
        self.daemon.settings["source"] |= {"uris": [proxy.uri(self.tarantool.uri)], "survey_interval_ms": 0}
        return proxy

    def run_workload(self, steps: int = 100) -> None:
        """Do something, and end."""
        self.workload.start(steps=steps)
        self.workload.wait()

    def catch_up(self, timeout_seconds: float = 2 * PATIENCE_SECONDS) -> None:
        """Wait until everything that the master has is durable in Kafka."""
        self.daemon.wait_until_caught_up(self.tarantool.vclock(), timeout_seconds)

    def check(self) -> Stream:
        """Hold everything: the stream's own promises, and that it makes the master's contents. The daemon has caught up."""
        stream = self.check_events()
        has_images = self.daemon.settings["state"].get("images", "full") == "full"
        counts = replica.compare(replica.fold(stream, has_images=has_images, tarantool=self.tarantool), self.tarantool)
        assert sum(counts.values()), "the master is empty, so nothing was compared"
        return stream

    def check_events(self) -> Stream:
        """Hold the stream's own promises; what the master has done since isn't published."""
        with TopicReader(self.kafka.bootstrap_servers, self.prefix) as reader:
            stream = parse(reader)
        try:
            stream.check()
        except AssertionError as error:
            error.add_note("\n".join(["what the daemon's log has beside information:", *self.daemon.troubles()]))
            for committed in (True, False):
                error.add_note(self._read_again(committed=committed))
            raise
        return stream

    def _read_again(self, *, committed: bool) -> str:
        """Which numbers another reader lacks: whether something isn't there, isn't committed, or wasn't read."""
        with TopicReader(self.kafka.bootstrap_servers, self.prefix, committed=committed) as reader:
            seqs = {event.seq for event in parse(reader, may_repeat=True).events}
        lacking = sorted(set(range(1, max(seqs, default=0) + 1)) - seqs)
        return f"another reader, of {'committed' if committed else 'all'} messages, lacks {len(lacking)} numbers: {lacking[:5]}"

    def check_as_promised(self) -> Counter[int]:
        """Hold what the daemon's way of delivery promises; returns how often each `seq` came. The daemon has caught up."""
        if self.daemon.settings["kafka"].get("delivery", "exactly_once") == "exactly_once":
            return Counter(event.seq for event in self.check().events)
        with TopicReader(self.kafka.bootstrap_servers, self.prefix) as reader:
            stream = parse(reader, may_repeat=True)
        counts = Counter(event.seq for event in stream.events)
        stream.events = distinct(stream.events)
        stream.check_sequence()
        compared = replica.compare(replica.fold(stream), self.tarantool)
        assert sum(compared.values()), "the master is empty, so nothing was compared"
        return counts

    def check_whole_while_dead(self, reader: TopicReader) -> None:
        """The daemon is dead or frozen: what is reachable becomes whole source transactions without it.

        Kafka may still be writing the markers of the last commit, which is all that there is to wait for.
        """
        torn = ["not looked yet"]

        def is_whole() -> bool:
            torn[:] = partial(parse(reader, reader.look()))
            return not torn

        wait_for("whole transactions in sight of a dead daemon", is_whole, 20)

    def close(self) -> None:
        """End the daemons and readers."""
        self._exits.close()


class Watcher:
    """Looks at the topics all the time, in a thread, and remembers what it could reach at each look."""

    def __init__(self, reader: TopicReader) -> None:
        self._reader = reader
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self.looks: list[Look] = []
        self._thread = threading.Thread(target=self._watch, name="watcher", daemon=True)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(60)

    def check(self, stream: Stream, share_with_more: float = 0.0) -> int:
        """Hold that at no look more than the one commit that Kafka was just showing was in sight in part.

        `stream` is everything, read later. Returns how many source transactions were met in part. Where partitions change their
        leaders, each new one finds out by itself how far it may be read: some looks may have more than one commit in part.
        """
        if self._failure is not None:
            raise self._failure
        assert self.looks, "nothing was looked at"
        looks = [self.looks[0]]
        for look in self.looks[1:]:
            # A broker that was killed knows only some seconds later again how far its partitions may be read.
            if all(look.get(place, 0) >= end for place, end in looks[-1].items()):
                looks.append(look)
        assert looks[-1] == self.looks[-1], "what was in sight is gone"
        return stream.check_looks(looks, share_with_more)

    def _watch(self) -> None:
        try:
            # A look asks the broker for all of its topics: without a pause they take a processor from what is looked at.
            while not self._stopping.wait(_LOOK_PAUSE_SECONDS):
                with contextlib.suppress(KafkaException, TimeoutError):  # Kafka is away at times
                    self.looks.append(self._reader.look())
        except BaseException as error:  # noqa: BLE001 - shown by `check`, in the test's thread
            self._failure = error
