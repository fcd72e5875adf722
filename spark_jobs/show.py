"""`python -m spark_jobs.show PATH…`: print the rows of tables of `current`, one JSON object a line, with key, row and seq.

The command is useful to examine a table without a notebook, and to compare it with its master.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from spark_jobs.errors import JobError, operator_message
from spark_jobs.lake.lake import Lake
from spark_jobs.runner.options import add_spark_options, add_table_format, hide
from spark_jobs.runner.output import prepare, tell
from spark_jobs.runner.session import JARS_DIRECTORY_VARIABLE, build_session
from spark_jobs.tables.places import table_at


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables, and return the exit status."""
    prepare()
    parser = argparse.ArgumentParser(prog="spark_jobs.show", description="Print the rows of a table of `current`.")
    parser.add_argument("path", nargs="+", help="folder of a space under the job's --path, or its table's name in a catalog")
    parser.add_argument(
        "--as-of",
        choices=("watermark",),
        help="show all tables as they were after the same source transaction, the last one up to which everything has been read",
    )
    add_table_format(parser)
    add_spark_options(parser, JARS_DIRECTORY_VARIABLE)
    options = parser.parse_args(arguments)
    try:
        session = build_session(
            "tarantool-cdc show",
            master=options.master,
            jars_directory=options.jars_dir,
            settings=dict(options.spark_conf),
            table_format=options.table_format,
        )
        found = {path: Lake.of_table(session, str(table_at(session, path)).rstrip("/")) for path in options.path}
        marks = {lake.place: lake.watermark() if options.as_of else None for lake, _ in found.values()}
        for path, (lake, space) in found.items():
            rows = lake.space_rows(space, marks[lake.place]).rows().select("_key", "_row", "_seq")
            name = json.dumps(path, ensure_ascii=False)
            for row in rows.toLocalIterator():
                print(f'{{"path":{name},"key":{row["_key"]},"row":{row["_row"]},"seq":{row["_seq"]}}}')
    except (JobError, PySparkException, Py4JError) as error:
        tell(hide(f"show: {operator_message(error)}", options))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
