"""Python packages that only a few tests need, each set in a folder of its own: `<cache>/packages/<name>-<hash>`.

They aren't among the packages of the checkout: they are large, and some would change how PySpark works there. A program that uses
a set gets its folder in PYTHONPATH.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from cdc.local.cache import cached_folder
from cdc.local.errors import LocalServerError

_DOWNLOAD_TIMEOUT_SECONDS = 1800


@dataclass(frozen=True)
class PackageSet:
    """Packages of PyPI (`name==version`), with all that they need."""

    name: str
    requirements: tuple[str, ...]


SPARK_CONNECT = PackageSet(
    "spark-connect",
    ("pandas==3.1.1", "pyarrow==26.0.1", "grpcio==1.85.1", "grpcio-status==1.85.1", "googleapis-common-protos==1.76.0"),
)
"""What PySpark 4.1 needs beside itself to talk to a server of Spark Connect."""

S3 = PackageSet("s3", ("moto[s3]==5.2.5", "flask==3.1.3", "flask-cors==6.0.5"))
"""A server of the S3 protocol that keeps everything in memory."""


def package_folder(wanted: PackageSet) -> Path:
    """Return the folder with these packages. The first call on this machine fetches them. Raises `LocalServerError`."""
    # Of this version of Python, as some packages are compiled.
    text = "\n".join((sys.implementation.cache_tag or "", *wanted.requirements))
    return cached_folder("packages", wanted.name, text, lambda scratch: _fetch(wanted, scratch / "packages"))


def _fetch(wanted: PackageSet, folder: Path) -> Path:
    outcome = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--quiet", "--no-compile"),
            *("--target", str(folder), *wanted.requirements),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_DOWNLOAD_TIMEOUT_SECONDS,
        check=False,
    )
    if outcome.returncode != 0:
        last_lines = "\n".join(outcome.stdout.splitlines()[-20:])
        raise LocalServerError(
            f"pip couldn't fetch the packages of {wanted.name} (exit status {outcome.returncode}).\n{last_lines}"
        )
    return folder
