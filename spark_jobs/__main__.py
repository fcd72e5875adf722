"""Command `python -m spark_jobs JOB …`, the same as `spark-submit spark_jobs/run.py JOB …`."""

import sys

from spark_jobs.run import main

if __name__ == "__main__":
    sys.exit(main())
