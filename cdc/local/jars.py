"""Maven's downloads for the local servers: jars, and the distributions of OpenSearch and of a registry of schemas.

`python -m cdc.local.jars [SET…]` fetches all of it. Each set has one folder, `<cache>/jars/<name>-<hash of the set's POM>`
(cache.py). A changed set gets a new folder.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cdc.local.cache import cache_folder, cached_folder
from cdc.local.errors import LocalServerError

_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1"
_DOWNLOAD_TIMEOUT_SECONDS = 1800


@dataclass(frozen=True)
class JarSet:
    """Artifacts (`group:name:version`) that share a class path.

    With `transitive`, Maven adds their dependencies; without, the set consists of the artifacts alone. If a set has an `archive`
    (`group:name:version:type`, and a classifier if it has one), its folder has the unpacked archive, and the jars are put into
    that folder's subfolder `jars_in`.
    """

    name: str
    artifacts: tuple[str, ...]
    transitive: bool
    archive: str | None = None
    jars_in: str = ""

    @property
    def pom(self) -> str:
        """The POM that Maven resolves."""
        return (
            '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
            f"<groupId>tarantool-cdc</groupId><artifactId>{self.name}</artifactId><version>1</version>"
            f"<packaging>pom</packaging><dependencies>{''.join(map(self._dependency, self._all))}</dependencies>"
            "</project>\n"
        )

    @property
    def _all(self) -> tuple[str, ...]:
        return self.artifacts if self.archive is None else (*self.artifacts, self.archive)

    def _dependency(self, artifact: str) -> str:
        group, name, version, *kind = artifact.split(":")
        tags = zip(("type", "classifier"), kind, strict=False)
        exclusion = "<exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>"
        return (
            f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>"
            f"{''.join(f'<{tag}>{one}</{tag}>' for tag, one in tags)}"
            f"{'' if self.transitive else f'<exclusions>{exclusion}</exclusions>'}</dependency>"
        )


KAFKA = JarSet(
    "kafka",
    (
        "org.apache.kafka:kafka_2.13:4.3.1",
        "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4",  # without a binding the broker exits without a message
    ),
    transitive=True,
)
"""A broker with its storage tool."""

SPARK = JarSet(
    "spark",
    (
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.1",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.1.1",
        "org.apache.spark:spark-avro_2.13:4.1.1",
        "org.apache.kafka:kafka-clients:3.9.1",
        "org.apache.commons:commons-pool2:2.12.1",
        "io.delta:delta-spark_4.1_2.13:4.1.0",
        "io.delta:delta-storage:4.1.0",
        "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0",
        "org.xerial:sqlite-jdbc:3.54.1.0",  # the database of a JDBC catalog of Iceberg, in the tests
    ),
    # Everything else that these need is in pyspark's own folder of jars, and a class on the path twice causes trouble.
    transitive=False,
)
"""The connectors for Kafka, Avro, Delta Lake and Iceberg, beside what pyspark 4.1.1 carries."""


_OPENSEARCH_VERSION = "2.19.6"

SPYMEMCACHED = JarSet("spymemcached", ("net.spy:spymemcached:2.12.3",), transitive=False)
"""A client that receives memcached's TAP feeds, for the tests."""

DEBEZIUM = JarSet(
    "debezium",
    (
        "io.debezium:debezium-connect-plugins:3.6.1.Final",
        "org.apache.kafka:connect-json:4.3.1",
        "org.apache.kafka:connect-runtime:4.3.1",
        "org.apache.kafka:connect-transforms:4.3.1",
        "io.apicurio:apicurio-registry-utils-converter:2.6.13.Final",
        "io.apicurio:apicurio-registry-serdes-avro-serde:2.6.13.Final",
    ),
    transitive=True,
)
"""Debezium's transforms and Kafka Connect's converters, which judge events in the tests."""

_ICEBERG_VERSION = "1.11.0"
_JETTY_VERSION = "12.1.5"

REST_CATALOG = JarSet(
    "rest-catalog",
    (
        f"org.apache.iceberg:iceberg-open-api:{_ICEBERG_VERSION}:jar:test-fixtures",
        f"org.apache.iceberg:iceberg-core:{_ICEBERG_VERSION}:jar:tests",
        f"org.apache.iceberg:iceberg-core:{_ICEBERG_VERSION}",
        f"org.eclipse.jetty.ee10:jetty-ee10-servlet:{_JETTY_VERSION}",
        f"org.eclipse.jetty.compression:jetty-compression-gzip:{_JETTY_VERSION}",
        f"org.eclipse.jetty.compression:jetty-compression-server:{_JETTY_VERSION}",
        "org.apache.hadoop:hadoop-client-api:3.4.1",
        "org.apache.hadoop:hadoop-client-runtime:3.4.1",
        "org.xerial:sqlite-jdbc:3.54.1.0",
    ),
    transitive=True,
)
"""Iceberg's own REST catalog for tests. Fetched by the first test that needs it."""

ICEBERG_S3 = JarSet("iceberg-s3", (f"org.apache.iceberg:iceberg-aws-bundle:{_ICEBERG_VERSION}",), transitive=False)
"""Iceberg's own access to S3. Fetched by the first test that needs it."""

REGISTRY = JarSet("registry", (), transitive=False, archive="io.apicurio:apicurio-registry-app:2.6.13.Final:tar.gz:all")
"""A registry of schemas. Versions 3 require Java 21."""

OPENSEARCH = JarSet(
    "opensearch",
    (
        # The module for _delete_by_query, which the archive lacks, with the classes that it is loaded with.
        f"org.opensearch.plugin:reindex-client:{_OPENSEARCH_VERSION}",
        f"org.opensearch:opensearch-ssl-config:{_OPENSEARCH_VERSION}",
        f"org.opensearch.client:opensearch-rest-client:{_OPENSEARCH_VERSION}",
        "org.apache.httpcomponents:httpclient:4.5.14",
        "org.apache.httpcomponents:httpcore:4.4.16",
        "org.apache.httpcomponents:httpasyncclient:4.1.5",
        "org.apache.httpcomponents:httpcore-nio:4.4.16",
        "commons-codec:commons-codec:1.16.1",
        "commons-logging:commons-logging:1.2",
    ),
    transitive=False,
    archive=f"org.opensearch.distribution.integ-test-zip:opensearch:{_OPENSEARCH_VERSION}:zip",
    jars_in=f"opensearch-{_OPENSEARCH_VERSION}/modules/reindex",
)
"""One node without plug-ins: the project's own archive for tests. Versions 3 require Java 21."""


def jar_folder(jar_set: JarSet) -> Path:
    """Return the folder with the contents of this set, and nothing else. The first call on this machine fetches them.

    Processes that call this at the same time wait for the one that fetches. Raises `LocalServerError` if Maven isn't
    installed or fails.
    """
    return cached_folder("jars", jar_set.name, jar_set.pom, partial(_fetch, jar_set))


def class_path(jar_set: JarSet) -> str:
    """Return the set's class path, for Java's -cp. Raises as `jar_folder`."""
    return str(jar_folder(jar_set) / "*")


def java_command() -> str:
    """Return the path of Java: from `$JAVA_HOME`, or on PATH. Raises `LocalServerError` if there is none."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if found is None:
        raise LocalServerError(
            f"There is no Java in JAVA_HOME={home}." if home else "There is no `java` on PATH.",
            "Install a Java runtime, 17 or newer: apt-get install openjdk-17-jre-headless, or `make setup`.",
        )
    return found


def _fetch(jar_set: JarSet, scratch: Path) -> Path:
    maven = shutil.which("mvn")
    if maven is None:
        raise LocalServerError(
            f"There is no `mvn` on PATH, which fetches the jars of {jar_set.name}.",
            "Install Maven: apt-get install maven, or `make setup`.",
        )
    project = scratch / "pom.xml"
    project.write_text(jar_set.pom)
    folder = scratch / "jars"
    jars = folder / jar_set.jars_in
    if jar_set.archive is not None:
        kind = jar_set.archive.split(":")[3]
        _run(maven, project, jar_set, f"{_PLUGIN}:unpack-dependencies", folder, f"-DincludeTypes={kind}")
    if not jar_set.artifacts:
        return folder
    _run(maven, project, jar_set, f"{_PLUGIN}:copy-dependencies", jars, "-DincludeScope=runtime", "-DincludeTypes=jar")
    return folder


def _run(maven: str, project: Path, jar_set: JarSet, goal: str, folder: Path, *settings: str) -> None:
    outcome = subprocess.run(
        [
            *(maven, "--batch-mode", "--quiet", "--file", str(project), goal),
            *(f"-DoutputDirectory={folder}", "-Dmaven.wagon.http.retryHandler.count=3", *settings),
            # In the user's own repository Maven would leave poms whose jars it didn't need. Spark, when it is to download its
            # jars by itself, looks there first, finds these poms, and fails for want of the jars.
            f"-Dmaven.repo.local={cache_folder() / 'maven'}",
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=_DOWNLOAD_TIMEOUT_SECONDS,
        check=False,
    )
    wanted = jar_set.artifacts if goal.endswith(":copy-dependencies") else ()
    missing = [artifact for artifact in wanted if not (folder / _file_name(artifact)).is_file()]
    if outcome.returncode != 0 or missing:
        last_lines = "\n".join(outcome.stdout.splitlines()[-20:])
        raise LocalServerError(
            f"Maven couldn't fetch the jars of {jar_set.name} (exit status {outcome.returncode}; "
            f"missing: {', '.join(missing) or 'others'}).\n{last_lines}"
        )


def _file_name(artifact: str) -> str:
    _, name, version, *kind = artifact.split(":")
    return "-".join([name, version, *kind[1:]]) + ".jar"


def main() -> None:
    """Fetch the sets that the arguments name, or all, and print their folders."""
    jar_sets = {jar_set.name: jar_set for jar_set in (KAFKA, SPARK, OPENSEARCH, SPYMEMCACHED, REGISTRY, DEBEZIUM)}
    parser = argparse.ArgumentParser(prog="python -m cdc.local.jars", description=main.__doc__)
    parser.add_argument("--folder", action="store_true", help="print the folder alone, for use within another command")
    parser.add_argument("sets", nargs="*", metavar="SET", help=f"one of {', '.join(jar_sets)}")
    options = parser.parse_args()
    names = options.sets or list(jar_sets)
    if unknown := set(names) - jar_sets.keys():
        parser.error(f"there is no set {', '.join(sorted(unknown))}; there are {', '.join(jar_sets)}")
    try:
        for name in names:
            folder = jar_folder(jar_sets[name])
            print(folder if options.folder else f"{name}: {folder}")
    except LocalServerError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
