"""OpenLineage's events of a daemon: a run from the first stream to the end, its spaces as inputs, and its topics as outputs.

    START      once the daemon reads, with all datasets
    RUNNING    now and then with counts and position; with all datasets again if the form of a space has changed
    COMPLETE, FAIL    at the end

Names are those that OpenLineage gives to Kafka's topics, so that jobs which read them, of whatever program, follow in the graph.
The schemas of topics have the columns as they are published: without those that are left out, and masked ones as strings.

This module needs the extra `lineage`; cdc.ops.lineage imports it only if events are to be sent.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlsplit

from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import (
    RunFacet,
    column_lineage_dataset,
    error_message_run,
    job_type_job,
    schema_dataset,
)
from openlineage.client.uuid import generate_new_uuid

from cdc.ops.lineage_places import Place
from cdc.stream.reports.flows import Columns, Flow

PRODUCER: Final = "urn:tarantool-cdc:daemon"


class RunEvents:
    """Maker of the events of one run."""

    def __init__(self, place: Place) -> None:
        """Begin a run."""
        self._run_id = str(generate_new_uuid())
        self._job = Job(
            place.namespace,
            place.job,
            {"jobType": job_type_job.JobTypeJobFacet("STREAMING", "TARANTOOL_CDC", "DAEMON", producer=PRODUCER)},
        )
        self._source = f"tarantool://{place.member}"
        self._kafka = f"kafka://{_first_broker(place.bootstrap_servers)}"

    def event(
        self, state: RunState, counts: Mapping[str, Any], flows: Sequence[Flow] | None = None, error: str | None = None
    ) -> RunEvent:
        """Return an event of now; `flows` None: what was told of datasets holds."""
        position = RunFacet(producer=PRODUCER).with_additional_properties(**counts)
        facets: dict[str, Any] = {"tarantoolCdc_position": position}
        if error is not None:
            facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(
                error, f"Python {platform.python_version()}", producer=PRODUCER
            )
        return RunEvent(
            eventType=state,
            eventTime=datetime.now(UTC).isoformat(),
            run=Run(self._run_id, facets),
            job=self._job,
            inputs=[self._input(flow) for flow in flows or ()],
            outputs=self._outputs(flows or ()),
            producer=PRODUCER,
        )

    def _input(self, flow: Flow) -> InputDataset:
        return InputDataset(self._source, flow.space, facets={"schema": _schema([flow.columns])})

    def _outputs(self, flows: Sequence[Flow]) -> list[OutputDataset]:
        by_topic: dict[str, list[Flow]] = {}
        for flow in flows:
            by_topic.setdefault(flow.topic, []).append(flow)
        return [
            OutputDataset(
                self._kafka,
                topic,
                facets={"schema": _schema([flow.published for flow in several]), "columnLineage": self._columns(several)},
            )
            for topic, several in by_topic.items()
        ]

    def _columns(self, flows: Sequence[Flow]) -> column_lineage_dataset.ColumnLineageDatasetFacet:
        found: dict[str, column_lineage_dataset.Fields] = {}
        for flow in flows:
            for name, type_ in flow.published:
                is_masked = (name, type_) not in flow.columns
                how = column_lineage_dataset.Transformation(
                    "DIRECT", subtype="TRANSFORMATION" if is_masked else "IDENTITY", masking=is_masked
                )
                origin = column_lineage_dataset.InputField(self._source, flow.space, name, [how])
                found.setdefault(name, column_lineage_dataset.Fields([])).inputFields.append(origin)
        return column_lineage_dataset.ColumnLineageDatasetFacet(found, producer=PRODUCER)


def _schema(tables: Sequence[Columns]) -> schema_dataset.SchemaDatasetFacet:
    """Return the fields of a space, or of all spaces that share a topic."""
    fields = {name: type_ for columns in tables for name, type_ in columns}
    return schema_dataset.SchemaDatasetFacet(
        [schema_dataset.SchemaDatasetFacetFields(name, type_) for name, type_ in fields.items()], producer=PRODUCER
    )


def _first_broker(bootstrap_servers: str) -> str:
    """Return host and port of the first server, without the protocol that may stand before them."""
    first = bootstrap_servers.split(",")[0].strip()
    return urlsplit(first).netloc if "://" in first else first
