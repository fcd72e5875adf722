"""What every thread that reads topics does about trouble."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from cdc.errors import CdcError, ConfigurationError, ConnectionLostError
from cdc.feeds.tap import topic_thread
from cdc.feeds.tap.topic_thread import TopicThread


class Scripted(TopicThread):
    """Meets these one after another; None is a time when something is read. Then it is stopped."""

    def __init__(self, *steps: CdcError | None) -> None:
        self.ended: list[CdcError | None] = []
        super().__init__("scripted", "trying again", self.ended.append)
        self.steps = list(steps)

    def _follow(self) -> None:
        while self.steps:
            step = self.steps.pop(0)
            if step is not None:
                raise step
            self._clear_error()
        self.stop()


def lines(thread: Scripted) -> list[tuple[str, str]]:
    with capture_logs() as found:
        thread.start()
        thread.join()
    return [(line["log_level"], line["event"]) for line in found]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_thread, "_RETRY_SECONDS", 0)


def test_trouble_is_told_once_and_so_is_its_end() -> None:
    away = ConnectionLostError("Kafka can't be reached", "Look whether it runs.")
    thread = Scripted(None, away, away, None, None, away)
    assert lines(thread) == [("warning", "trying again"), ("info", "the topics are read again"), ("warning", "trying again")]
    assert (thread.error, thread.ended) == (str(away), [None])


def test_what_does_not_heal_ends_it() -> None:
    error = ConfigurationError("the topic is another's", "Choose another.")
    thread = Scripted(error, None)
    assert lines(thread) == []
    assert (thread.ended, thread.steps) == ([error], [None])
