from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from confluent_kafka import Producer

from cdc.local.interface import KafkaServer
from cdc.local.spark import spark_environment, spark_submit_arguments

_JOB = """
import json, sys
from pyspark.sql import SparkSession

servers, topic, table = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
read = spark.read.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
read.load().selectExpr("cast(value as string) as value").write.format("delta").save(table)
print(json.dumps({
    "values": sorted(row.value for row in spark.read.format("delta").load(table).collect()),
    "master": spark.sparkContext.master,
    "memory": spark.conf.get("spark.driver.memory"),
}))
"""


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_job_reads_kafka_and_writes_delta(kafka: KafkaServer, tmp_path: Path) -> None:
    topic = f"spark-{uuid.uuid4().hex}"
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for value in (b"one", b"two"):
        producer.produce(topic, value)
    assert producer.flush(60) == 0
    job = subprocess.run(
        [sys.executable, "-c", _JOB, kafka.bootstrap_servers, topic, str(tmp_path / "table")],
        env={**os.environ, **spark_environment()},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert job.returncode == 0, job.stderr
    assert json.loads(job.stdout) == {"values": ["one", "two"], "master": "local[2]", "memory": "1g"}


@pytest.mark.spark
def test_the_arguments_stand_before_a_program() -> None:
    arguments = spark_submit_arguments()
    assert arguments[0] == "--master"
    assert len(arguments) % 2 == 0
