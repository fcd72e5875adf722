"""A Tarantool instance as a process of this machine."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

from cdc.errors import ConnectionLostError, ServerError
from cdc.local.client import Client
from cdc.local.options import TarantoolOptions
from cdc.local.ports import free_port
from cdc.local.process import ChildProcess
from cdc.local.server import LocalServer
from cdc.local.supervised import Supervised

REPLICATION_USER = "cdc"
"""User who may replicate and read everything."""
ADMIN_USER = "admin"
"""User who may do everything."""
PASSWORD = "s3cret"  # noqa: S105 - of instances that only this machine can reach
"""Password of both users."""

INSTANCE_FILE = Path(__file__).with_name("instance.lua")
"""Script that an instance runs."""
INSTANCE_VARIABLE = "TARANTOOL_CDC_INSTANCE"
"""Environment variable with the instance's configuration."""

# As pairs: a Lua table with integer keys is sent as an array or as a map, depending on how dense it is.
_VCLOCK = "local pairs_ = {} for id, lsn in pairs(box.info.vclock) do table.insert(pairs_, {id, lsn}) end return pairs_"


class Tarantool(LocalServer):
    """One instance, with the users `cdc` (replication, read on universe) and `admin`.

    `stop` and `kill` keep its files; the next `start` recovers from them, and adds nothing to the vclock.
    """

    def __init__(
        self,
        work_dir: Path,
        options: TarantoolOptions | None = None,
        *,
        port: int | None = None,
        name: str = "Tarantool",
    ) -> None:
        """Prepare the instance, without starting it.

        If `port` is None, one is chosen; peers that name it need it to stay the same.
        """
        self._options = options or TarantoolOptions()
        super().__init__(name, may_move=port is None and not self._options.replication)
        self._work_dir = work_dir.absolute()
        self._port = free_port() if port is None else port
        self._token = ""
        self._client = self._new_client()

    @property
    def work_dir(self) -> Path:
        """Directory of its .snap and .xlog files."""
        return self._work_dir

    @property
    def port(self) -> int:
        """The TCP port on 127.0.0.1; it may change at the first start, and never after."""
        return self._port

    @property
    def uri(self) -> str:
        """`user:password@host:port` of the user for replication."""
        return f"{REPLICATION_USER}:{PASSWORD}@127.0.0.1:{self._port}"

    @property
    def uuid(self) -> str:
        """UUID of the instance."""
        return str(self.eval("return box.info.uuid")[0])

    @property
    def replicaset_uuid(self) -> str:
        """UUID of the replica set that it has founded or joined."""
        return str(self.eval("return box.info.cluster.uuid")[0])

    def vclock(self) -> dict[int, int]:
        """Return the last LSN of each replica id; id 0 counts the changes of local spaces."""
        (pairs,) = self.eval(_VCLOCK)
        return dict(pairs)

    def eval(self, expression: str, *arguments: Any) -> list[Any]:
        """Run Lua as `admin`; see `client.Client.eval`."""
        return self._client.eval(expression, *arguments)

    def eval_raw(self, expression: str, *arguments: Any) -> bytes:
        """Run Lua as `admin`; see `client.Client.eval_raw`."""
        return self._client.eval_raw(expression, *arguments)

    def stop(self) -> None:
        """Stop it cleanly; it may be started again. Stopping a server that isn't running is allowed."""
        self._client.close()
        super().stop()

    def kill(self) -> None:
        """End it as a crash would; it may be started again. Killing a server that isn't running is allowed."""
        super().kill()
        self._client.close()

    def _spawn(self) -> Supervised:
        self._work_dir.mkdir(parents=True, exist_ok=True)
        configuration = self._instance_configuration(self._options, f"127.0.0.1:{self._port}", self._work_dir)
        return ChildProcess(
            self.name,
            ["tarantool", str(INSTANCE_FILE)],
            log_file=self._work_dir / "tarantool.log",
            working_directory=self._work_dir,
            environment={INSTANCE_VARIABLE: configuration},
        )

    def _instance_configuration(self, options: TarantoolOptions, listen: str, work_dir: Path) -> str:
        self._token = secrets.token_hex(8)
        box = {**options.box_configuration(), "listen": listen, "work_dir": str(work_dir)}
        return json.dumps({"box": box, "user": REPLICATION_USER, "password": PASSWORD, "token": self._token})

    def _missing(self) -> str | None:
        try:
            (token,) = self._client.eval("return rawget(_G, 'tarantool_cdc_ready')")
        except (ConnectionLostError, ServerError) as error:
            return str(error)
        if token == self._token:
            return None
        return "it is still being configured" if token is None else "another instance answers on its port"

    def _found_port_taken(self, log_text: str) -> bool:
        return "Address already in use" in log_text

    def _choose_ports(self) -> None:
        self._port = free_port()
        self._client.close()
        self._client = self._new_client()

    def _new_client(self) -> Client:
        return Client(self._port, ADMIN_USER, PASSWORD)
