"""Tests of spark_jobs.runner."""
