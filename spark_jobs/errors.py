"""The error with which a job ends when an operator has to act, and explanations of Spark's own errors for operators."""

from __future__ import annotations

import re
from typing import Final

_WORKER_ERROR: Final = re.compile(r"^(?:spark_jobs\.errors\.)?JobError: (.+)$", re.MULTILINE)
_RAISED_ERROR: Final = re.compile(r"\[USER_RAISED_EXCEPTION\] (.+?)(?: SQLSTATE: \w+)?$", re.MULTILINE)
_SERVERS: Final = "{servers}"
"""Placeholder for Kafka's address."""
_PLAN: Final = re.compile(r"\n=== Streaming Query ===\n.*|\n== (?:Physical|SQL|DataFrame).*", re.DOTALL)
"""The query that Spark appends to an error's text: offsets of all partitions and plans, up to thousands of lines."""
_FRAME: Final = re.compile(r"^(?:\s+at \S.*|\s*\.\.\. \d+ more|JVM stacktrace:)\n?", re.MULTILINE)
_REPEATED: Final = "Nothing is lost: the next start repeats the batch."

FILES_GONE: Final = (
    "FILE_NOT_EXIST|DELTA_FILE_NOT_FOUND|DELTA_CHANGE_DATA_FILE_NOT_FOUND|"
    "DELTA_UNSUPPORTED_TIME_TRAVEL_BEYOND_DELETED_FILE_RETENTION|"
    r"iceberg\.exceptions\.NotFoundException: (?:Failed to open input stream|Location does not exist)"
)
"""Pattern of the errors of Delta, Iceberg and Spark where VACUUM or an expiry has removed a file that is still needed."""

_MEANINGS: Final = tuple(
    (re.compile(pattern), meaning)
    for pattern, meaning in (
        (
            r"No space left on device|DSQuotaExceededException|Disk quota exceeded",
            "The disk of the tables, of the checkpoint or of spark.local.dir is full. Free space; the task maintain vacuums. "
            f"{_REPEATED}",
        ),
        (
            r"CONCURRENT_STREAM_LOG_UPDATE|Concurrent update to the log|Multiple streaming (?:jobs|queries) (?:detected|are )",
            "Another process runs with the same checkpoint. Run one job at a time with each --checkpoint. The tables are right; "
            "the other process goes on.",
        ),
        (
            r"Read-only file system|\(Permission denied\)|Permission denied: |AccessControlException|AccessDeniedException: ",
            "This user can't write to the folder of the tables, of the checkpoint or of spark.local.dir: its file system is"
            f" read-only, or the user has no right to. Mount it for writing, or give the user the right. {_REPEATED}",
        ),
        (
            r"Mkdirs failed to create|File name too long",
            "A folder can't be created. Check that this user may write there. If its last part is space=…, the space's name has"
            f" more than 255 bytes as a folder's name. Leave that space out with --spaces. {_REPEATED}",
        ),
        (
            r"Timed out waiting for a node assignment|Timeout expired while fetching topic metadata|"
            r"No resolvable bootstrap urls|Timeout of \d+ms expired before the position|"
            r"Failed to (?:construct|create new) Kafka\w*",
            f"Kafka doesn't answer at --bootstrap-servers{_SERVERS}. Check that it runs, that this host and Spark's workers can "
            f"reach it, and that --kafka-option or --kafka-options-file set its security.protocol. {_REPEATED}",
        ),
        (
            r"SaslAuthenticationException|SslAuthenticationException|Authentication failed|TopicAuthorizationException|"
            r"GroupAuthorizationException|ClusterAuthorizationException",
            "Kafka refuses this job. Check the settings in --kafka-option and --kafka-options-file, and the job's rights to "
            f"read. {_REPEATED}",
        ),
        (
            # Spark first says how to ignore the loss, and after that sentence what is missing.
            r"(?<=to false\.\n)Reason: |source option \W?failOnDataLoss to false\.(?!\nReason: )|"
            r"Partitions? .{0,300}(?:were|was) gone|KAFKA_DATA_LOSS|"
            r"UnknownTopicOrPartitionException",
            "Kafka no longer has the records from which the checkpoint resumes: a topic was deleted or created again, or records "
            "were removed before the job had read them. The tables keep their contents. If it is a space's topic, have the "
            "daemon send the space's rows again (tarantool-cdc snapshot). Then start with --kafka-option failOnDataLoss=false "
            "until the job has caught up.",
        ),
        (
            r"DELTA_FAILED_TO_MERGE_FIELDS|DELTA_MERGE_INCOMPATIBLE|schema mismatch detected|DELTA_MISSING_COLUMN|"
            r"INSERT_COLUMN_ARITY_MISMATCH|DELTA_MERGE_UNRESOLVED_EXPRESSION|_LEGACY_ERROR_TEMP_DELTA_0007",
            "The table's columns differ from those that this job writes, so something else made or changed the table. Choose "
            "another place (--path, --catalog, --dead-letters), or undo the change.",
        ),
        (
            FILES_GONE,
            "A file of a table is gone: `maintain` or VACUUM has removed it while it was still needed. Try again, and let"
            " --vacuum-hours be longer than any read takes. A view is made again when the job `current` starts with --catalog."
            " If the file is gone then, too, put it back.",
        ),
        (
            r"SessionHiveMetaStoreClient|MetaException|HiveException|TTransportException",
            f"The catalog doesn't answer. Check that its server runs and that --spark-conf names it. {_REPEATED}",
        ),
        (
            r"ClassNotFoundException: Class org\.apache\.hadoop\.fs\.(?:s3a|azurebfs|gcs)|UnsupportedFileSystemException|"
            r"No FileSystem for scheme",
            "Spark has no file system of this kind. Start it with the package for that file system, such as "
            "org.apache.hadoop:hadoop-aws for s3a://, in the version of Spark's own Hadoop.",
        ),
    )
)


class JobError(Exception):
    """Error for operators. Its text says, in sentences, what is wrong and what to do."""


def job_error_from_worker(error: BaseException) -> JobError | None:
    """Return the JobError with which a Spark worker ended, extracted from Java's stack traces; None if there is none."""
    if isinstance(error, JobError):
        return error
    text = str(error)
    found = _WORKER_ERROR.search(text) or _RAISED_ERROR.search(text)
    return JobError(found[1]) if found else None


def operator_message(error: BaseException, bootstrap_servers: str | None = None) -> str:
    """Return the message for an operator. `bootstrap_servers` is the address of Kafka, if the command has one.

    For a JobError, also one raised in a Spark worker, this is its text. For a known error of Spark it is an explanation, followed
    by the error's own line in parentheses. For any other error it is the error's text.
    """
    known = job_error_from_worker(error)
    if known is not None:
        return str(known)
    text = str(error)
    for pattern, meaning in _MEANINGS:
        cause = pattern.search(text)
        if cause:
            start = text.rfind("\n", 0, cause.start()) + 1
            line = text[start:].splitlines()[0].strip().removeprefix("Caused by: ")
            servers = f" {bootstrap_servers}" if bootstrap_servers else ""
            return f"{meaning.replace(_SERVERS, servers)} ({line[:500]})"
    return _FRAME.sub("", _PLAN.sub("", text)).strip() or text
