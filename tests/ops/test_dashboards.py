"""Grafana's dashboard and Prometheus' alerts in config/: current, of metrics that there are, and accepted by promtool."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from cdc.ops import fleet_page
from cdc.ops.metrics import COUNTERS, GAUGES, LABELLED, UPSTREAM_GAUGES
from tests.fakes import alerts, dashboard
from tests.fakes.golden import Golden

CONFIG: Final = Path(__file__).resolve().parents[2] / "config"
ALERTS_FILE: Final = CONFIG / "prometheus-alerts.yml"
DASHBOARD_FILE: Final = CONFIG / "grafana-dashboard.json"
METRICS: Final = {*(f"{name}_total" for name in COUNTERS), *GAUGES, *UPSTREAM_GAUGES, *LABELLED, *fleet_page.METRICS}
NAME: Final = re.compile(r"\btarantool_cdc_\w+")
UNITS: Final = {"none", "s", "Bps", "bytes", "ops", "rowsps", "bool_yes_no"}
"""Names that Grafana has for units."""


def test_the_alerts_are_current(golden: Golden) -> None:
    golden.check_lines(ALERTS_FILE, alerts.alerts())


def test_the_dashboard_is_current(golden: Golden) -> None:
    golden.check(DASHBOARD_FILE, dashboard.dashboard())


def test_alerts_name_metrics_that_there_are() -> None:
    for alert in alerts.ALERTS:
        used = set(NAME.findall(alert.expression))
        assert used, alert.name
        assert used <= METRICS, alert.name
        for label in re.findall(r"\$labels\.(\w+)", alert.summary):
            known = {label for name in used if name in LABELLED for label in LABELLED[name][1]}
            known |= {"upstream"} if used & set(UPSTREAM_GAUGES) else set()
            known |= {"shard"} if used & set(fleet_page.METRICS) else set()
            assert label in known, alert.name
    assert len({alert.name for alert in alerts.ALERTS}) == len(alerts.ALERTS)


def test_each_alert_has_a_trial() -> None:
    assert set(alerts.TROUBLES) == {alert.name for alert in alerts.ALERTS}
    assert {name for series, _ in alerts.TROUBLES.values() for key in series for name in NAME.findall(key)} <= METRICS


def test_the_dashboard_shows_every_metric() -> None:
    """Or says why not; and names none that there isn't."""
    expressions = [expression for _, plots in dashboard.ROWS for plot in plots for expression, _ in plot.lines]
    used = {name for expression in expressions for name in NAME.findall(expression)}
    assert used <= METRICS
    assert METRICS - used - set(dashboard.LEFT_OUT) == set()
    assert set(dashboard.LEFT_OUT) <= METRICS


def test_the_dashboard_is_one() -> None:
    """As Grafana reads it: panels in a grid without overlaps, known units, one data source, which is asked for."""
    found: dict[str, Any] = json.loads(DASHBOARD_FILE.read_text())
    assert {"title", "uid", "schemaVersion", "panels", "templating", "time"} <= set(found)
    taken: set[tuple[int, int]] = set()
    for panel in found["panels"]:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert place["x"] + place["w"] <= dashboard.WIDTH
        assert not cells & taken, panel["title"]
        taken |= cells
        if panel["type"] != "row":
            assert panel["type"] == "timeseries"
            assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
            assert [target["refId"] for target in panel["targets"]] == sorted({target["refId"] for target in panel["targets"]})
            assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${source}"}
    assert len({panel["id"] for panel in found["panels"]}) == len(found["panels"])
    variables = {variable["name"] for variable in found["templating"]["list"]}
    assert set(re.findall(r"\$\{?([a-z]+)\}?", DASHBOARD_FILE.read_text())) <= variables


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool (Debian: apt-get install prometheus)")
def test_promtool_tries_the_alerts(tmp_path: Path) -> None:
    """A quiet daemon raises none of them, and for each there are series that raise it alone."""
    (tmp_path / ALERTS_FILE.name).write_text(ALERTS_FILE.read_text())
    trial = tmp_path / "trial.yml"
    trial.write_text("".join(f"{line}\n" for line in alerts.tests()))
    for command in (["check", "rules", ALERTS_FILE.name], ["test", "rules", trial.name]):
        ran = subprocess.run(["promtool", *command], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
