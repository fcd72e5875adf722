"""PySpark's daemon of workers, with less for each to do: `python -m tests.spark.python_workers pyspark.worker`.

Behind each task a worker searches all that it has imported for garbage, which takes longer than most tasks of the tests. Here
everything is imported before the forks, and is never searched.
"""

from __future__ import annotations

import gc

from pyspark import daemon

from spark_jobs.contract import avro_records, row_texts
from spark_jobs.lake import current_rows
from spark_jobs.materialize import images

__all__ = ["avro_records", "current_rows", "images", "row_texts"]

if __name__ == "__main__":
    gc.collect()
    gc.freeze()
    daemon.manager()  # type: ignore[no-untyped-call]
