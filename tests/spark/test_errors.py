"""The sentence that an operator reads when a Spark job fails."""

from __future__ import annotations

import pytest

from spark_jobs.errors import JobError, operator_message

STREAM = "[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted. SQLSTATE: XXKST\n=== Query ===\n{}\n"


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("Caused by: java.io.IOException: No space left on device", "The disk of the tables"),
        (
            "java.util.concurrent.ExecutionException: org.apache.kafka.common.errors.TimeoutException: "
            "Timed out waiting for a node assignment. Call: describeTopics",
            "Kafka doesn't answer at --bootstrap-servers",
        ),
        ("org.apache.kafka.common.errors.SaslAuthenticationException: Authentication failed", "Kafka refuses this job"),
        (
            "java.lang.IllegalStateException: Partitions Set(shop.users-0) were gone. Some data may have been missed.",
            "Kafka no longer has the records from which the checkpoint resumes",
        ),
        ("Caused by: java.io.FileNotFoundException: /lake/_delta_log/1.json (Read-only file system)", "This user can't write to"),
        (
            "org.apache.hadoop.security.AccessControlException: Permission denied: user=spark",
            "This user can't write to the folder",
        ),
        (
            "[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log. Multiple streaming jobs detected for 3.",
            "Another process runs with the same checkpoint",
        ),
        ("Caused by: java.io.IOException: Mkdirs failed to create file:/lake/changes/space=users", "A folder can't be created"),
        ("[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file 1.parquet.", "A file of a table is gone"),
        (
            "org.apache.iceberg.exceptions.NotFoundException: Failed to open input stream for file: file:/users/1.avro",
            "A file of a table is gone",
        ),
        ("[DELTA_FAILED_TO_MERGE_FIELDS] Failed to merge fields 'id' and 'id'.", "The table's columns differ"),
        ("org.apache.hadoop.hive.ql.metadata.HiveException: Unable to instantiate", "The catalog doesn't answer"),
        ("java.lang.ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found", "Spark has no file system"),
    ],
)
def test_an_error_is_told_with_what_it_means(text: str, meaning: str) -> None:
    told = operator_message(RuntimeError(STREAM.format(text)))
    assert told.startswith(meaning)
    assert told.endswith(f"({text.removeprefix('Caused by: ')})")
    assert "\n" not in told


def test_what_kafka_no_longer_has_is_named() -> None:
    told = operator_message(
        RuntimeError(
            STREAM.format(
                "Some data may have been lost because they are not available in Kafka any more;\n"
                "either the data was aged out by Kafka or the topic may have been deleted before all the data in the\n"
                "topic was processed.\n"
                "If you don't want your streaming query to fail on such cases, set the source option failOnDataLoss to false.\n"
                "Reason: Partitions Set(shop.schema-0) have been deleted."
            )
        )
    )
    assert told.startswith("Kafka no longer has the records from which the checkpoint resumes")
    assert told.endswith("until the job has caught up. (Reason: Partitions Set(shop.schema-0) have been deleted.)")


def test_a_jobs_own_sentence_comes_first() -> None:
    assert operator_message(JobError("No space left on device, it says.")) == "No space left on device, it says."
    inside = "  File x\nspark_jobs.errors.JobError: The form is gone. Take a snapshot.\n at java\nCaused by: HiveException"
    assert operator_message(RuntimeError(inside)) == "The form is gone. Take a snapshot."


def test_what_is_not_known_is_shown_without_plans_and_frames() -> None:
    assert operator_message(RuntimeError("something\nelse")) == "something\nelse"
    text = "[STREAM_FAILED] Query ended: x\n\tat java.Thread.run(Thread.java:1)\n\t... 7 more\nCaused by: java.lang.Y: y"
    plan = "\n=== Streaming Query ===\nIdentifier: a\nLogical Plan:\nProject [1]\n+- Filter\n"
    assert operator_message(RuntimeError(text + plan)) == "[STREAM_FAILED] Query ended: x\nCaused by: java.lang.Y: y"
