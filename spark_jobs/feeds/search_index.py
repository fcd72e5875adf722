"""Job `search_index`: one OpenSearch index per space, one document per row."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from spark_jobs.contract.source import Topics
from spark_jobs.errors import JobError
from spark_jobs.feeds.feed import Feed
from spark_jobs.feeds.needs import needs
from spark_jobs.runner.checkpoint import Notes
from spark_jobs.runner.job import Sink
from spark_jobs.runner.options import secret


class SearchIndex(Feed):
    """The job `search_index`."""

    name = "search_index"
    summary = "keep one index of OpenSearch per space with one document per row"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """See `Job.add_options`."""
        super().add_options(parser)
        add = parser.add_argument
        add("--to", required=True, metavar="URL,…", help="OpenSearch's nodes (https://search:9200)")
        add("--user", help="the user to log in as")
        add("--password", type=secret, metavar="@FILE|$NAME", help="the user's password: a file with it, or a variable")
        add("--ca-file", metavar="FILE", help="the certificates to trust, on every worker")
        add("--certificate-file", metavar="FILE", help="the job's own certificate, on every worker")
        add("--key-file", metavar="FILE", help="its key")
        add("--no-verify", action="store_true", help="don't check the nodes' certificates")
        add(
            "--index",
            default="{prefix}-{space}",
            metavar="TEMPLATE",
            help="the name of a space's index for searches; it is an alias (default: %(default)s)",
        )
        add(
            "--index-body", type=Path, metavar="FILE", help="settings and mappings (JSON) of new indexes; they win over the job's"
        )
        add(
            "--document",
            metavar="MODULE:FUNCTION",
            help="function that makes a document of a row: function(row, change) → dict, or None for no document",
        )
        add("--forget-deleted-after-hours", type=float, default=24, metavar="N", help="keep marks of deleted rows (default: 24)")
        add("--bulk-documents", type=int, default=1000, metavar="N", help="documents per request (default: %(default)s)")
        add("--bulk-bytes", type=int, default=5_000_000, metavar="N", help="approximate bytes per request (default: %(default)s)")
        add("--patience-seconds", type=float, default=300, metavar="N", help="how long to wait for OpenSearch (default: 300)")
        add("--timeout-seconds", type=float, default=60, metavar="N", help="how long to wait for each answer (default: 60)")

    def sink(self, session: SparkSession, topics: Topics, options: argparse.Namespace) -> Sink:
        """See `Job.sink`."""
        with needs("opensearch-py"):
            from spark_jobs.feeds.index_sink import SearchIndexSink, Writing, named_function
            from spark_jobs.feeds.made_indexes import FILE
            from spark_jobs.feeds.opensearch import Address
        if options.document is not None:
            named_function(options.document)
        address = Address(
            urls=tuple(options.to.split(",")),
            user=options.user,
            password=options.password,
            ca_file=options.ca_file,
            certificate_file=options.certificate_file,
            key_file=options.key_file,
            verifies=not options.no_verify,
            timeout_seconds=options.timeout_seconds,
        )
        table = None if options.changes is None else options.changes.identity()
        writing = Writing(address, options.document, options.bulk_documents, options.bulk_bytes, options.patience_seconds, table)
        return SearchIndexSink(
            session,
            topics,
            writing,
            template=options.index,
            body=_json_of(options.index_body),
            forget_after_hours=options.forget_deleted_after_hours,
            notes=Notes(session, options.checkpoint, FILE),
            read_topic=self.forms(options),
        )


def _json_of(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        body = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise JobError(f"--index-body {path}: {error}") from error
    if not isinstance(body, dict) or not body.keys() <= {"settings", "mappings"}:
        raise JobError(f"--index-body {path} must be an object with settings, mappings or both.")
    return body
