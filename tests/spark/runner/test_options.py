"""What commands take, and that no message shows a secret."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.contract.source import Topics
from spark_jobs.runner.options import Secret, hide, options_file, secret, setting
from tests.fakes.profiles import MANY

JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="{}";'


def test_values_stand_on_the_command_line_in_files_or_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "password"
    file.write_text("p@ss=word\n")
    monkeypatch.setenv("OF_KAFKA", "from outside")
    assert setting("kafka.ssl.key.password=$OF_KAFKA") == ("kafka.ssl.key.password", "from outside")
    assert setting(f"a=@{file}") == ("a", "p@ss=word")
    assert (secret(f"@{file}"), secret("$OF_KAFKA"), secret("plain")) == ("p@ss=word", "from outside", "plain")
    assert [setting(f"a={text}") for text in ("@@b", "$$b", "", "b=c")] == [("a", "@b"), ("a", "$b"), ("a", ""), ("a", "b=c")]
    for wrong in ("a=$NOT_THERE", f"a=@{tmp_path}/missing", f"a=@{tmp_path}", "hunter2", "=hunter2"):
        with pytest.raises(argparse.ArgumentTypeError) as raised:
            setting(wrong)
        assert "hunter2" not in str(raised.value)


def test_a_file_of_kafkas_tools_is_taken_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        '# of the cluster\n! as well\n\nsecurity.protocol=SASL_SSL\nsasl.jaas.config = a required \\\n    password="x\\\\y";\n'
        "kafka.ssl.truststore.location: C\\:\\\\trust\nminPartitions 8\nempty=\nsasl.mechanism\tPL\\u0041IN\n"
    )
    assert options_file(str(file)) == {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.jaas.config": 'a required password="x\\y";',
        "kafka.ssl.truststore.location": "C:\\trust",
        "minPartitions": "8",
        "empty": "",
        "kafka.sasl.mechanism": "PLAIN",
    }
    file.write_text("=hunter2\n")
    with pytest.raises(argparse.ArgumentTypeError, match="has a line that isn't NAME=VALUE"):
        options_file(str(file))


@MANY
@given(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), min_size=8).filter(str.strip), st.data())
def test_no_message_shows_a_secret(value: str, data: st.DataObject) -> None:
    """However it got into the options and into the message."""
    jaas = JAAS.format(value.replace("\\", "\\\\").replace('"', '\\"'))
    options = argparse.Namespace(
        kafka_option=[setting(f"kafka.sasl.jaas.config={jaas.replace('@', '@@', 1) if jaas[0] in '@$' else jaas}")],
        kafka_options_file={"kafka.ssl.keystore.password": Secret(value)},
        token=Secret(value),
        path="lake",
    )
    inner = jaas[jaas.index('password="') + len('password="') : -2]
    shown = data.draw(st.sampled_from([value, jaas, inner, repr(value), repr(jaas), repr(options.kafka_option)]))
    message = hide(f"Kafka said: <{shown}> at lake.", options)
    assert value not in message
    assert inner not in message
    assert message.startswith("Kafka said: <")
    assert message.endswith("> at lake.")
    assert value not in repr(options.token)


def test_the_command_line_wins_over_the_file() -> None:
    options = argparse.Namespace(
        bootstrap_servers="k:9092",
        prefix="shop",
        spaces=".*",
        kafka_options_file={"kafka.security.protocol": "SSL", "kafka.a.b": "1"},
        kafka_option=[("kafka.a.b", "2")],
        max_offsets_per_trigger=0,
    )
    topics = Topics.of(options)
    assert topics.kafka_options == {"kafka.security.protocol": "SSL", "kafka.a.b": "2"}
    assert topics.max_offsets_per_trigger is None


def test_a_given_option_of_a_consumer_wins_over_what_jobs_set() -> None:
    given = Topics("k:9092", "shop", kafka_options={"kafka.max.poll.records": "7", "kafka.isolation.level": "read_uncommitted"})
    options = given.options()
    assert options["kafka.max.poll.records"] == "7"
    assert options["kafka.fetch.max.wait.ms"] == Topics("k:9092", "shop").options()["kafka.fetch.max.wait.ms"]
    assert options["kafka.isolation.level"] == "read_committed"  # but for this one
