"""Tests of spark_jobs.delta."""
