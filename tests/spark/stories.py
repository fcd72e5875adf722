"""Stories of several spaces that one run of a job tells side by side, so that not each of them needs runs of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import count
from typing import Any

from tests.spark.messages import FakeTopics, Message, Place, delete, event, put, schema, snapshot, truncate, update, upsert

Story = Iterator[Iterable[Place]]
"""Each step gives the records that the job's next batch gets from it, and then checks what has become of them."""


class Space:
    """A space with what can happen to it. All messages have its name and its id."""

    def __init__(self, topics: FakeTopics, name: str, space_id: int) -> None:
        """Bind the functions that make messages."""
        self.topics = topics
        self.name = name
        self.space_id = space_id
        which: dict[str, Any] = {"space": name, "space_id": space_id}
        self.put: Callable[..., Message] = partial(put, **which)
        self.update: Callable[..., Message] = partial(update, **which)
        self.upsert: Callable[..., Message] = partial(upsert, **which)
        self.delete: Callable[..., Message] = partial(delete, **which)
        self.truncate: Callable[..., Message] = partial(truncate, **which)
        self.event: Callable[..., Message] = partial(event, **which)
        self.schema: Callable[..., Message] = partial(schema, **which)
        self.snapshot: Callable[..., Message] = partial(snapshot, spaces=(name,), space_id=space_id)

    def all(self) -> list[Place]:
        """All records of its topic."""
        logs = self.topics.messages.items()
        return [(*place, offset) for place, log in logs if place[0] == f"shop.{self.name}" for offset in range(len(log))]


def side_by_side(
    topics: FakeTopics, take: Callable[[list[Place]], None], stories: Mapping[str, Callable[[Space], Story]]
) -> dict[str, Space]:
    """Tell stories, each in a space with its name: a batch has the next records of all of them. `take` gives it to the job.

    The seqs of all stories are those of one stream: in each step they must be after all that have been merged before.
    A story that fails doesn't keep the others from being told; the error names all that failed.
    """
    spaces = {name: Space(topics, name, space_id) for name, space_id in zip(stories, count(600), strict=False)}
    running = {name: story(spaces[name]) for name, story in stories.items()}
    failed: list[Exception] = []
    while running:
        batch: list[Place] = []
        for name, story in list(running.items()):
            try:
                batch += next(story)
            except StopIteration:
                del running[name]
            except Exception as error:  # noqa: BLE001 - raised below, with those of the other stories
                error.add_note(f"in the story of the space {name!r}")
                failed.append(error)
                del running[name]
        if running:
            take(batch)
    if failed:
        raise ExceptionGroup("stories that failed", failed)
    return spaces
