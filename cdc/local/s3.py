"""A server of the S3 protocol as a process of this machine: moto, which keeps everything in memory."""

from __future__ import annotations

import sys
import urllib.request
from collections.abc import Mapping

from cdc.local import packages
from cdc.local.http_process import PROBE_TIMEOUT_SECONDS, HttpProcess
from cdc.local.process import ChildProcess
from cdc.local.supervised import Supervised


class S3(HttpProcess):
    """A server with one bucket. A restart loses what is in it."""

    BUCKET = "lake"

    @property
    def url(self) -> str:
        """The server's address; the port may change at the first start, and never after."""
        return self._root

    @property
    def environment(self) -> Mapping[str, str]:
        """The login that clients of Amazon's look for in the environment. The server accepts any."""
        return {"AWS_ACCESS_KEY_ID": "anyone", "AWS_SECRET_ACCESS_KEY": "anything", "AWS_REGION": "us-east-1"}

    def start(self) -> None:
        """See `LocalServer.start`. The bucket is there then."""
        super().start()
        urllib.request.urlopen(  # noqa: S310 - http
            urllib.request.Request(f"{self.url}/{self.BUCKET}", method="PUT"),  # noqa: S310 - http
            timeout=PROBE_TIMEOUT_SECONDS,
        ).close()

    def _spawn(self) -> Supervised:
        self._directory.mkdir(parents=True, exist_ok=True)
        return ChildProcess(
            self.name,
            [sys.executable, "-m", "moto.server", "--host", "127.0.0.1", "--port", str(self._port)],
            log_file=self._directory / "s3.log",
            working_directory=self._directory,
            environment={"PYTHONPATH": str(packages.package_folder(packages.S3))},
        )

    @property
    def _probe(self) -> str:
        return f"{self.url}/moto-api/"

    def _found_port_taken(self, log_text: str) -> bool:
        return "Address already in use" in log_text
