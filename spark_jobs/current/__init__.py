"""The job `current`. For programs that read its tables: `read_current` and `watermark`."""

from spark_jobs.current.reading import read_current, watermark

__all__ = ["read_current", "watermark"]
