"""Real servers for the tests, and the seed of everything random in them.

Tests that use a server are marked `live`, and those with a Spark session `spark`, by themselves. What a test's servers printed is
in its temporary directory.
"""

from __future__ import annotations

import gc
import itertools
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from cdc.local.caches import Memcached, Redis
from cdc.local.interface import KafkaServer, TarantoolServer
from cdc.local.kafka_cluster import KafkaCluster
from cdc.local.kafka_secured import SecuredKafka
from cdc.local.opensearch import OpenSearch
from cdc.local.options import TarantoolOptions
from cdc.local.registry import Registry
from cdc.local.servers import LocalServers, ServerKind, local_servers, server_kind
from tests import chosen, starvation
from tests.fakes import profiles
from tests.fakes.golden import golden_fixture

if TYPE_CHECKING:
    from tests.live.spark_java import SparkJava

__all__ = ["golden_fixture"]

_SEED = pytest.StashKey[int]()
_SEED_NAME = "seed"
"""The same in what pytest-xdist gives its processes."""
_BROKERS = pytest.StashKey[dict[str, "KafkaServer | KafkaCluster"]]()
"""Those that all tests of a group share, by the group."""
_SHARED_FIXTURES = (
    "spark",
    "spark_java",
    "kafka_cluster",
    "secured_kafka",
    "frail_kafka",
    "strict_kafka",
    "opensearch",
    "registry",
)
"""Servers that cost so much to start, or that tests damage so much, that all tests of each run in one process (Spark's in two).
The `kafka` of most tests isn't among them: each process has its own."""
_GROUPS = {"opensearch": "spark"}
"""Fixtures whose tests run in the process of another fixture's tests, because most of them use both."""
_TABLES_GROUP = "spark-tables"
_TABLES_FOLDERS = {"spark", "audit", "contract", "delta", "history", "materialize", "runner"}
"""Group of the tests of these folders of tests/spark that need no servers, about half of Spark's time. They use a second Spark
session, in another process: the tests of one session run one after another, and would finish last."""
_SERVER_FIXTURES = {
    *("kafka", "kafka_factory", "secured_kafka", "kafka_cluster", "tarantool", "tarantool_factory", "servers"),
    *("opensearch", "redis_server", "memcached_server", "registry"),
}
_SPARK_FIXTURES = {"spark", "spark_java"}

_COLLECTED_EVERY = (20_000, 20, 10)
"""Thresholds of the garbage collector. What importing and collecting the tests leaves behind lives to the end, and by default
Python searches it for garbage again and again: a fifth of the CPU time that tests without servers take."""

_MEMORY = Path("/dev/shm")  # noqa: S108 - folders of our own are made in it
_MEMORY_BYTES_MIN = 8 * 1024**3
"""That must be free where files are kept in memory."""


class TarantoolFactory(Protocol):
    """Starts an instance with these fields of `TarantoolOptions`, under `name` if one is given; it ends with the test."""

    def __call__(self, *, name: str = "", **options: Any) -> TarantoolServer: ...


class KafkaFactory(Protocol):
    """Starts a broker of the test's own, for tests that stop it or need other properties; it ends with the test."""

    def __call__(self, properties: Mapping[str, str] | None = None) -> KafkaServer: ...


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, metavar="N", help="the seed of random workloads and of hypothesis")
    parser.addoption("--update-golden", action="store_true", help="write golden files, scenarios and made pages anew")
    parser.addoption("--budget", type=float, default=1.0, metavar="SHARE", help="of the random examples, how many to try")
    parser.addoption("--seeds", type=int, default=200, metavar="N", help="of 200 seeds of the simulation, how many to run")


@pytest.hookimpl(tryfirst=True)  # before hypothesis reads its own option
def pytest_configure(config: pytest.Config) -> None:
    given: int | None = config.getoption("--seed")
    drawn: int = secrets.randbelow(2**32) if given is None else given
    config.stash[_BROKERS] = {}
    config.stash[_SEED] = getattr(config, "workerinput", {}).get(_SEED_NAME, drawn)
    # Only if it is asked for: with a fixed seed hypothesis doesn't try again what failed the last time.
    if given is not None:
        config.option.hypothesis_seed = str(given)
    profiles.spend(config.getoption("--budget"))
    if config.option.basetemp is None and "TMPDIR" not in os.environ and _has_memory():
        # All servers write, and a disk that stands still for some seconds, because somebody else writes, costs sessions and
        # deadlines: tests fail that have nothing to do with it. Children take it from the environment.
        os.environ["TMPDIR"] = tempfile.tempdir = str(_MEMORY)
    # The program heeds no signal that its parent ignores, as nohup and shells in the background do. Children take this from here.
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)
    gc.set_threshold(*_COLLECTED_EVERY)
    config.pluginmanager.register(starvation)
    if config.option.markexpr == "soak":
        config.pluginmanager.register(_TellsAtOnce())


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give each process that runs tests the seed of the first one: which tests there are follows from it."""
    node.workerinput[_SEED_NAME] = node.config.stash[_SEED]


def _has_memory() -> bool:
    """Whether there is enough room for the tests' files in memory."""
    return _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _MEMORY_BYTES_MIN


class _TellsAtOnce:
    """Shows a failure when it comes: the long drills take hours, and pytest would tell at their end."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            print(f"\n{report.nodeid}, {report.when}:\n{report.longreprtext}", flush=True)


def pytest_report_header(config: pytest.Config) -> list[str]:
    seed = config.stash[_SEED]
    kinds = {"process": "processes", "container": "containers"}
    return [f"servers: {kinds[server_kind().value]}", f"seed: {seed} (again: --seed {seed})"]


@pytest.hookimpl(tryfirst=True)  # before -m selects by marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen.leave_to_soak(items, None if config.option.markexpr == "soak" else config.stash[_SEED])
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if _SERVER_FIXTURES.intersection(fixtures):
            item.add_marker("live")
        if _SPARK_FIXTURES.intersection(fixtures):
            item.add_marker("spark")
        if shared := next((name for name in _SHARED_FIXTURES if name in fixtures), None):
            is_of_tables = item.path.parent.name in _TABLES_FOLDERS and not _SERVER_FIXTURES.intersection(fixtures)
            item.add_marker(pytest.mark.xdist_group(_TABLES_GROUP if is_of_tables else _GROUPS.get(shared, shared)))
    if "PYTEST_XDIST_WORKER" in os.environ:
        # The long ones first, as they say themselves: the short ones fill up what is left of each process's time.
        items.sort(key=_order)


def pytest_collection_finish() -> None:
    """Have the garbage collector leave alone what is there from now to the end."""
    gc.collect()
    gc.freeze()


def _order(item: pytest.Item) -> tuple[bool, bool, float]:
    """Groups are handed out before all of these, the largest first. Spark takes a minute to begin, whatever it is to do."""
    has_spark, has_servers = (item.get_closest_marker(mark) is not None for mark in ("spark", "live"))
    timeout = item.get_closest_marker("timeout")
    return not has_spark, not has_servers, -timeout.args[0] if timeout is not None else 0


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Have its broker run: the test before may have failed in the middle, or this one is repeated after its group's end."""
    broker = item.config.stash[_BROKERS].get(_group(item))
    if broker is not None and not broker.is_running:
        broker.start()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    """End a group's broker with its last test: one that idles costs a hundredth of a processor, three together five."""
    yield
    broker = item.config.stash[_BROKERS].get(_group(item))
    has_groups = item.config.getoption("loadgroup", default=False)
    if has_groups and broker is not None and nextitem is not None and _group(nextitem) != _group(item):
        broker.kill()


def _group(item: pytest.Item) -> str:
    mark = item.get_closest_marker("xdist_group")
    return "" if mark is None else str(mark.args[0])


@pytest.fixture(scope="session")
def seed(pytestconfig: pytest.Config) -> int:
    """Of this run; the header of the report names it."""
    return pytestconfig.stash[_SEED]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB."""
    path = tmp_path / "disk"
    path.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", path], capture_output=True, check=False).returncode:
        pytest.skip("only who may mount file systems can make a small disk")
    yield path
    subprocess.run(["umount", "--lazy", path], check=True)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[LocalServers]:
    """Servers of this test, under its temporary directory."""
    with local_servers(tmp_path) as started:
        yield started


@pytest.fixture
def tarantool_factory(servers: LocalServers) -> TarantoolFactory:
    """Starts as many instances as the test asks for."""
    numbers = itertools.count(1)

    def start(*, name: str = "", **options: Any) -> TarantoolServer:
        return servers.start_tarantool(name or f"tarantool-{next(numbers)}", TarantoolOptions(**options))

    return start


@pytest.fixture
def tarantool(tarantool_factory: TarantoolFactory) -> TarantoolServer:
    """A fresh instance with the default options."""
    return tarantool_factory()


@pytest.fixture(scope="session")
def broker_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Path]]:
    """Makes a folder for a lasting broker's data, which is gone after the tests, however they end: it may be in memory."""
    with tempfile.TemporaryDirectory(prefix="tarantool-cdc-") as folder:

        def make(name: str) -> Path:
            path = Path(folder) / name
            path.mkdir()
            return path

        yield make
        # The folder goes; what the brokers printed stays with the tests' own.
        for log in Path(folder).rglob("*.log"):
            if not log.stem.isdigit():  # a partition's segment
                shutil.copy(log, tmp_path_factory.mktemp(log.parent.name) / log.name)


@pytest.fixture(scope="session")
def kafka(broker_folder: Callable[[str], Path]) -> Iterator[KafkaServer]:
    """The one broker of the session: use topics of your own, and leave it running."""
    # Nobody kills it, so nothing waits for its session to end; a disk that stands still for some seconds must not end it either.
    # Half of what it costs while it idles are its heartbeats.
    patient = {"broker.session.timeout.ms": "60000", "broker.heartbeat.interval.ms": "5000"}
    with local_servers(broker_folder("kafka")) as started:
        yield started.start_kafka(properties=patient)


@pytest.fixture
def kafka_factory(servers: LocalServers) -> KafkaFactory:
    """Starts as many brokers as the test asks for; each takes some seconds and a few hundred megabytes."""
    numbers = itertools.count(1)

    def start(properties: Mapping[str, str] | None = None) -> KafkaServer:
        return servers.start_kafka(f"kafka-{next(numbers)}", properties, heap="512m")

    return start


KAFKA_USERS = {"cdc": "cdc-secret"}
"""Who may log in at the secured broker."""


@pytest.fixture(scope="session")
def secured_kafka(broker_folder: Callable[[str], Path], pytestconfig: pytest.Config) -> Iterator[SecuredKafka]:
    """A broker where clients log in and have only the rights that a test grants them: leave none behind."""
    if server_kind() is not ServerKind.PROCESS:
        pytest.skip("only a process takes the second listener")
    with local_servers(broker_folder("secured-kafka")) as started:
        broker = pytestconfig.stash[_BROKERS]["secured_kafka"] = started.start_secured_kafka(KAFKA_USERS)
        yield broker


@pytest.fixture(scope="session")
def frail_kafka(broker_folder: Callable[[str], Path], pytestconfig: pytest.Config) -> Iterator[KafkaServer]:
    """One broker for all tests that stop, kill or freeze it: leave it running."""
    with local_servers(broker_folder("frail-kafka")) as started:
        # A transaction that is older than its producer allows is aborted at once, not within ten seconds.
        properties = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}
        broker = pytestconfig.stash[_BROKERS]["frail_kafka"] = started.start_kafka(properties=properties, heap="512m")
        yield broker


@pytest.fixture(scope="session")
def kafka_cluster(broker_folder: Callable[[str], Path], pytestconfig: pytest.Config) -> Iterator[KafkaCluster]:
    """Three brokers for all tests that kill or freeze some of them: leave them running."""
    if server_kind() is not ServerKind.PROCESS:
        pytest.skip("brokers in containers don't find each other at 127.0.0.1")
    with local_servers(broker_folder("kafka-cluster")) as started:
        brokers = pytestconfig.stash[_BROKERS]["kafka_cluster"] = started.start_kafka_cluster()
        yield brokers


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """The one registry of schemas of the session, without persistent data: leave it running."""
    with local_servers(tmp_path_factory.mktemp("registry")) as started:
        yield started.start_registry()


@pytest.fixture(scope="session")
def opensearch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenSearch]:
    """The one node of the session: use indexes of your own, and leave it running."""
    with local_servers(tmp_path_factory.mktemp("opensearch")) as started:
        yield started.start_opensearch()


@pytest.fixture(scope="session")
def spark_java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkJava]:
    """The one JVM for programs that the tests start, and that use Spark one after the other."""
    from tests.live.spark_java import SparkJava  # pyspark takes half a second to import, in each process

    started = SparkJava(tmp_path_factory.mktemp("spark-java") / "log")
    yield started
    started.close()


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    """The one Redis of the session: leave it running, and expect what others left in it."""
    with local_servers(tmp_path_factory.mktemp("redis")) as started:
        yield started.start_redis()


@pytest.fixture(scope="session")
def memcached_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Memcached]:
    """The one memcached of the session: leave it running; others may flush it."""
    with local_servers(tmp_path_factory.mktemp("memcached")) as started:
        yield started.start_memcached()
