"""The section `[lineage]`: whether catalogs of lineage are told what the daemon reads and writes."""

from __future__ import annotations

from pydantic import Field

from cdc.config.section import Section


class LineageSection(Section):
    """OpenLineage events: which spaces become which topics, and how the daemon's runs go. Where they are sent is said by
    OpenLineage's own configuration: `OPENLINEAGE_URL`, or the file in `OPENLINEAGE_CONFIG`."""

    enabled: bool = False
    """Whether events are sent. Needs the extra `lineage`."""
    namespace: str = Field(default="tarantool-cdc", min_length=1, max_length=200)
    """Namespace of the daemon's job. The job has the daemon's name."""
    interval_ms: int = Field(default=60_000, ge=1_000, le=86_400_000)
    """Time between the events of a run that goes on. That the form of a space has changed is told sooner."""
