"""Tests of spark_jobs.tables."""
