"""The one error that a job ends with when an operator has to act, and what Spark's own errors mean for one."""

from __future__ import annotations

import re
from typing import Final

_WORKER_ERROR: Final = re.compile(r"^(?:spark_jobs\.errors\.)?JobError: (.+)$", re.MULTILINE)
_RAISED_ERROR: Final = re.compile(r"\[USER_RAISED_EXCEPTION\] (.+?)(?: SQLSTATE: \w+)?$", re.MULTILINE)
_REPEATED: Final = "Nothing is lost: the next start repeats the batch."

_MEANINGS: Final = tuple(
    (re.compile(pattern), meaning)
    for pattern, meaning in (
        (
            r"No space left on device|DSQuotaExceededException|Disk quota exceeded",
            "A disk is full: that of the tables, of the checkpoint, or of spark.local.dir. Make room; the task maintain vacuums. "
            f"{_REPEATED}",
        ),
        (
            r"Mkdirs failed to create|File name too long",
            "A folder can't be made. See that this user may write there. If its last part is space=…, the space's name has"
            f" more than 255 bytes as that of a folder. Leave that space out with --spaces. {_REPEATED}",
        ),
        (
            r"Timed out waiting for a node assignment|No resolvable bootstrap urls|Timeout of \d+ms expired before the position|"
            r"Failed to (?:construct|create new) Kafka\w*",
            "Kafka doesn't answer at --bootstrap-servers. See that it runs and is reached from here and from Spark's workers, "
            f"and that --kafka-option or --kafka-options-file say its security.protocol. {_REPEATED}",
        ),
        (
            r"SaslAuthenticationException|SslAuthenticationException|Authentication failed|TopicAuthorizationException|"
            r"GroupAuthorizationException|ClusterAuthorizationException",
            f"Kafka refuses this job. See what --kafka-option and --kafka-options-file say, and its rights to read. {_REPEATED}",
        ),
        (
            # Spark says what it misses behind a sentence that says how to pass over it.
            r"(?<=to false\.\n)Reason: |source option \W?failOnDataLoss to false\.(?!\nReason: )|"
            r"Partitions? .{0,300}(?:were|was) gone|KAFKA_DATA_LOSS|"
            r"UnknownTopicOrPartitionException",
            "Kafka no longer has what the checkpoint goes on from: a topic was deleted or made anew, or records went before they "
            "were read. What is in the tables stays. If it is a space's topic, have the daemon send its rows again "
            "(tarantool-cdc snapshot). Then start with --kafka-option failOnDataLoss=false until the job has caught up.",
        ),
        (
            r"DELTA_FAILED_TO_MERGE_FIELDS|DELTA_MERGE_INCOMPATIBLE|schema mismatch detected|DELTA_MISSING_COLUMN|"
            r"INSERT_COLUMN_ARITY_MISMATCH|DELTA_MERGE_UNRESOLVED_EXPRESSION|_LEGACY_ERROR_TEMP_DELTA_0007",
            "The table has other columns than this job writes, so something else made it, or changed it. Choose another place "
            "(--path, --catalog, --dead-letters), or take the change back.",
        ),
        (
            r"SessionHiveMetaStoreClient|MetaException|HiveException|TTransportException",
            f"The catalog doesn't answer. See that its server runs and that --spark-conf names it. {_REPEATED}",
        ),
        (
            r"ClassNotFoundException: Class org\.apache\.hadoop\.fs\.(?:s3a|azurebfs|gcs)|UnsupportedFileSystemException|"
            r"No FileSystem for scheme",
            "Spark has no file system of this kind. Start it with the package for it, such as org.apache.hadoop:hadoop-aws for "
            "s3a://, in the version of Spark's own Hadoop.",
        ),
    )
)


class JobError(Exception):
    """What is wrong, and what to do about it, in sentences."""


def of_worker(error: BaseException) -> JobError | None:
    """The JobError that a worker has ended with, out of Java's stack traces, whatever step of Spark's has told it; else None."""
    if isinstance(error, JobError):
        return error
    text = str(error)
    found = _WORKER_ERROR.search(text) or _RAISED_ERROR.search(text)
    return JobError(found[1]) if found else None


def sentence(error: BaseException) -> str:
    """What an operator is told: a JobError's sentence, also of one that came back from a Spark worker; else what the error means,
    with its own words behind it.
    """
    known = of_worker(error)
    if known is not None:
        return str(known)
    text = str(error)
    for pattern, meaning in _MEANINGS:
        cause = pattern.search(text)
        if cause:
            start = text.rfind("\n", 0, cause.start()) + 1
            line = text[start:].splitlines()[0].strip().removeprefix("Caused by: ")
            return f"{meaning} ({line[:500]})"
    return text
