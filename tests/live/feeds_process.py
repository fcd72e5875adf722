"""A program: several jobs over what the topics have now, in one Spark session. `JOB OPTION… then JOB OPTION…`"""

from __future__ import annotations

import sys
from itertools import groupby

from spark_jobs import run
from spark_jobs.contract.source import Topics
from spark_jobs.runner.session import build_session


def main() -> None:
    """Until all of them have ended."""
    # Several jobs at once need more memory than one.
    settings = {"spark.scheduler.mode": "FAIR", "spark.driver.memory": "2g"}
    session = build_session("feeds", jars_directory=sys.argv[1], settings=settings)
    queries = []
    for is_separator, command in groupby(sys.argv[2:], "then".__eq__):
        if not is_separator:
            job, *arguments = command
            options = run.parse_options(job, arguments)
            # Of its own, as names of queries are told apart within a session.
            queries.append(run.start(session.newSession(), run.JOBS[job], Topics.of(options), options))
    for query in queries:
        query.awaitTermination()


if __name__ == "__main__":
    main()
