"""The table at the end of `make coverage`."""

from __future__ import annotations

from tests.coverage_table import Count, by_package, lines, modules

REPORT = {
    "files": {
        name: {"summary": {"num_statements": 8, "num_branches": 2, "covered_lines": run, "covered_branches": branches}}
        for name, run, branches in [
            ("cdc/cli.py", 8, 2),
            ("cdc/feeds/tap/wire.py", 4, 1),
            ("cdc/feeds/__init__.py", 8, 0),
            ("spark_jobs/lake/lake.py", 0, 0),
        ]
    }
}


def test_packages_are_the_sums_of_their_modules() -> None:
    assert by_package(modules(REPORT)) == [
        Count("cdc", 10, 10),
        Count("cdc/feeds", 20, 13),
        Count("spark_jobs/lake", 10, 0),
        Count("all", 40, 23),
    ]


def test_nothing_to_run_is_all_of_it() -> None:
    assert list(lines([Count("cdc", 0, 0), Count("cdc/feeds", 200, 123)])) == [
        "cdc             0  100.0 %",
        "cdc/feeds     200   61.5 %",
    ]
