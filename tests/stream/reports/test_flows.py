"""What catalogs of lineage are told of a daemon's spaces: topics and columns as they are published."""

from __future__ import annotations

from cdc.config.columns import ColumnsRule
from cdc.events.topics import TopicNames
from cdc.schema.forms import Field, KeyPart, SpaceForm
from cdc.stream.batches.options import PipelineOptions
from cdc.stream.commits.checkpoint import Checkpoint
from cdc.stream.reports.flows import Flow, flows

FORM = SpaceForm(
    512,
    "users",
    (Field("id", "unsigned", False), Field("email", "any", True), Field("phone", "string", True)),
    (KeyPart(0, "", "unsigned"),),
)


class Stored(Checkpoint):
    """A checkpoint with one published space."""

    def published_forms(self) -> list[SpaceForm]:
        return [FORM]


def found_by(rule: ColumnsRule) -> list[Flow]:
    return list(flows(Stored(), TopicNames("shop"), PipelineOptions("shop", [".*"], [], column_rules=[rule])))


def test_columns_are_told_as_they_are_published() -> None:
    stored = (("id", "unsigned"), ("email", "any"), ("phone", "string"))
    rule = ColumnsRule(spaces="users", exclude=["phone"], mask={"email": "***"})
    assert found_by(rule) == [Flow("users", stored, "shop.users", (("id", "unsigned"), ("email", "string")))]


def test_rules_that_no_longer_fit_leave_a_space_out() -> None:
    assert found_by(ColumnsRule(spaces="users", exclude=["id"])) == []
