"""OpenSearch as a process of this machine: one node without plug-ins and without authentication."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import urllib.request
from pathlib import Path

from cdc.local import jars
from cdc.local.ports import free_port
from cdc.local.process import ChildProcess
from cdc.local.server import LocalServer
from cdc.local.supervised import Supervised

_PROBE_TIMEOUT_SECONDS = 2
_NOBODY = 65534
_MEMORY = Path("/dev/shm")  # noqa: S108 - folders of our own are made in it
_MEMORY_BYTES = 4 * 1024**3

_LOG_CONFIGURATION = """\
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d{ISO8601}][%-5p][%c{1.}] %m%n
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
"""

_MODULE = """\
name=reindex
description=_delete_by_query
version={version}
opensearch.version={version}
java.version=11
classname=org.opensearch.index.reindex.ReindexPlugin
custom.foldername=
extended.plugins=
has.native.controller=false
"""


class OpenSearch(LocalServer):
    """A cluster of one node. `stop` and `kill` keep its data; `close` removes it."""

    def __init__(
        self, directory: Path, *, port: int | None = None, heap: str = "256m", is_lasting: bool = False, name: str = "OpenSearch"
    ) -> None:
        """Prepare the server, without starting it.

        Its log is in `directory`. If it `is_lasting`, Java compiles as well as it can.
        """
        super().__init__(name, may_move=port is None)
        self._directory = directory.absolute()
        self._heap = heap
        self._is_lasting = is_lasting
        self._port = free_port() if port is None else port
        self._home: Path | None = None
        self._data: Path | None = None

    @property
    def port(self) -> int:
        """The TCP port on 127.0.0.1 for HTTP; it may change at the first start, and never after."""
        return self._port

    @property
    def url(self) -> str:
        """`http://host:port`."""
        return f"http://127.0.0.1:{self._port}"

    def close(self) -> None:
        """Stop the server for good, and remove its data."""
        super().close()
        for folder in (self._home, self._data):
            if folder is not None:
                shutil.rmtree(folder)
        self._home = self._data = None

    def _spawn(self) -> Supervised:
        home = self._home = self._home or _new_home()
        data = self._data = self._data or _new_data()
        (home / "config" / "opensearch.yml").write_text(self._configuration(home, data))
        (home / "config" / "jvm.options").write_text(self._java_options(home))
        command = [str(home / "distribution" / "bin" / "opensearch")]
        if os.getuid() == 0:
            for path in (data, *data.rglob("*"), home, *home.rglob("*")):
                if not path.is_relative_to(home / "distribution"):
                    os.chown(path, _NOBODY, _NOBODY)
            # OpenSearch refuses to run as root. After a change of user, it is no longer killed with this process, so this is
            # set again.
            user = [f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups", "--pdeathsig=KILL"]
            command = ["setpriv", *user, *command]
        return ChildProcess(
            self.name,
            command,
            log_file=self._directory / "opensearch.log",
            working_directory=home,
            environment={
                "OPENSEARCH_PATH_CONF": str(home / "config"),
                "OPENSEARCH_TMPDIR": str(home / "tmp"),
                "OPENSEARCH_JAVA_HOME": str(Path(jars.java_command()).resolve().parent.parent),
                "OPENSEARCH_JAVA_OPTS": "",
            },
        )

    def _configuration(self, home: Path, data: Path) -> str:
        settings = {
            "cluster.name": "local",
            "node.name": home.name,
            "path.data": str(data),
            "path.logs": str(home / "logs"),
            "network.host": "127.0.0.1",
            "http.port": str(self._port),
            "transport.port": "0",
            "discovery.type": "single-node",
            "node.processors": "2",
            "cluster.routing.allocation.disk.threshold_enabled": "false",
        }
        return "".join(f"{name}: {json.dumps(value)}\n" for name, value in settings.items())

    def _java_options(self, home: Path) -> str:
        threads = "org.opensearch.secure_sm.SecuredForkJoinWorkerThreadFactory"
        options = [
            *(f"-Xms{self._heap}", f"-Xmx{self._heap}", "-XX:+UseSerialGC", f"-Djava.io.tmpdir={home / 'tmp'}"),
            *([] if self._is_lasting else ["-XX:TieredStopAtLevel=1"]),
            f"-Djava.util.concurrent.ForkJoinPool.common.threadFactory={threads}",
        ]
        return "".join(f"{option}\n" for option in options)

    def _missing(self) -> str | None:
        try:
            with urllib.request.urlopen(self.url, timeout=_PROBE_TIMEOUT_SECONDS) as answer:  # noqa: S310 - http
                name = json.load(answer)["name"]
        except (OSError, ValueError) as error:
            return str(error)
        return None if self._is_ours(name) else "another node answers on its port"

    def _is_ours(self, node: str) -> bool:
        return self._home is not None and node == self._home.name

    def _found_port_taken(self, log_text: str) -> bool:
        return "Address already in use" in log_text

    def _choose_ports(self) -> None:
        self._port = free_port()


def _new_home() -> Path:
    """Return a new folder that any user can enter, unlike root's folders, with the distribution and room for the rest."""
    home = Path(tempfile.mkdtemp(prefix="tarantool-cdc-opensearch-"))
    home.chmod(0o755)
    (unpacked,) = jars.jar_folder(jars.OPENSEARCH).iterdir()
    try:
        shutil.copytree(unpacked, home / "distribution", copy_function=os.link)
    except shutil.Error:  # the cache is on another file system
        shutil.rmtree(home / "distribution")
        shutil.copytree(unpacked, home / "distribution")
    version = unpacked.name.removeprefix("opensearch-")
    module = home / "distribution" / "modules" / "reindex"
    (module / "plugin-descriptor.properties").write_text(_MODULE.format(version=version))
    for folder in ("config", "config/jvm.options.d", "logs", "tmp"):
        (home / folder).mkdir()
    (home / "config" / "log4j2.properties").write_text(_LOG_CONFIGURATION)
    return home


def _new_data() -> Path:
    """Return a new data folder, in memory if there is enough: creating an index or moving an alias waits for a disk."""
    is_roomy = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _MEMORY_BYTES
    return Path(tempfile.mkdtemp(prefix="tarantool-cdc-opensearch-data-", dir=_MEMORY if is_roomy else None))
