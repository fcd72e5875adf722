"""The TAP server as a real process beside a daemon, and what its clients must have in the end."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

from cdc.local.ports import free_port
from tests.feeds.tap.client import TapClient
from tests.live.daemon import DaemonProcess
from tests.live.scene import Scene
from tests.live.stream import parse
from tests.live.topics import TopicReader
from tests.live.waiting import wait_for

_NAMES = "local found = {} for _, row in box.space._space:pairs() do table.insert(found, {row.id, row.name}) end return found"


class TapProcess:
    """One TAP server with its scene's configuration."""

    def __init__(self, scene: Scene, name: str = "tap", **settings: Any) -> None:
        """Nothing is started yet; `name` is of its files, `settings` are those of the section `tap`."""
        self._directory = scene.directory / name
        self.port = free_port()
        self._http_port = free_port()
        sections: dict[str, dict[str, Any]] = {
            **scene.daemon.settings,
            "tap": {
                "listen": f"127.0.0.1:{self.port}",
                "http": f"127.0.0.1:{self._http_port}",
                "path": str(self._directory / "sessions"),
                **settings,
            },
        }
        self.process = DaemonProcess(self._directory, scene.daemon.name, sections)

    def start(self) -> None:
        """Start it, and wait until clients can connect."""
        self.process.start(command="tap")
        wait_for("the TAP server to listen", self._is_listening)

    def keep_rows(self) -> None:
        """It is on another machine than the daemon: it has a store of its own, and doesn't see the daemon's."""
        self.process.settings["tap"]["store_path"] = str(self._directory / "rows")
        self.process.settings["state"] = {"path": str(self._directory / "not-there")}

    def status(self) -> dict[str, Any]:
        """What it says of itself."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._http_port}/status", timeout=30) as answer:
            found: dict[str, Any] = json.loads(answer.read())
            return found

    def dumped(self) -> TapClient:
        """A client that was given everything, and let go."""
        with self.connect() as client:
            client.connect("dump", is_dump=True).start()
            client.wait_closed()
            assert client.backfills_ended  # and again, where it had to begin anew, as when a space gets another name
            return client

    def connect(self) -> TapClient:
        """A connection."""
        return TapClient(self.port)

    def close(self) -> None:
        """Leave nothing running."""
        self.process.close()

    def __enter__(self) -> TapProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _is_listening(self) -> bool:
        assert self.process.run.exit_status() is None, self.process.run.log_tail()
        try:
            TapClient(self.port).close()
        except OSError:
            return False
        return True


def expected_contents(scene: Scene) -> dict[str, Any]:
    """What a client that gets everything must have: the rows that the topics make, which the scene compares with the master.

    Spaces have the names that they have now.
    """
    with TopicReader(scene.kafka.bootstrap_servers, scene.prefix) as reader:
        stream = parse(reader)
    names = dict(scene.tarantool.eval(_NAMES)[0])
    rows: dict[int, dict[str, Any]] = {}
    for event in sorted(stream.events, key=lambda event: event.seq):
        space = event.space_id
        if event.op == "t":
            rows[space] = {}
            continue
        assert event.key is not None
        if event.value["after"] is None:
            rows.setdefault(space, {}).pop(event.key, None)
        else:
            rows.setdefault(space, {})[event.key] = list(event.value["after"].values())
    return {f"{names[space]}:{_joined(key)}": row for space, found in rows.items() for key, row in found.items()}


def _joined(key: str) -> str:
    values = json.loads(key).values()
    return ":".join(value if isinstance(value, str) else json.dumps(value, separators=(",", ":")) for value in values)


def decoded(contents: dict[str, bytes]) -> dict[str, Any]:
    """The rows' values, to be compared. Fields may have another name in a row that was changed before the name was."""
    return {key: list(json.loads(value).values()) for key, value in dict(contents).items()}
