"""Tests of spark_jobs.lake."""
