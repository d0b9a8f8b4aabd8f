"""The hooks of a session with performance tests. Each hook lives in the module of its subject."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from pytest_llmperf.plugin.configure import pytest_configure, pytest_report_header, pytest_unconfigure
from pytest_llmperf.plugin.endings import pytest_runtest_call, pytest_runtest_makereport, pytest_runtest_teardown
from pytest_llmperf.plugin.inputs import pytest_runtestloop
from pytest_llmperf.plugin.kinds import pytest_collection_finish, pytest_itemcollected, pytest_runtest_setup
from pytest_llmperf.plugin.ordering import pytest_collection_modifyitems
from pytest_llmperf.plugin.verdicts import pytest_report_teststatus, pytest_sessionfinish

HEARING = ("llmperf-reports", "llmperf-outcomes", "llmperf-baselines")



def hear_broken_files(config: pytest.Config, reports: Iterable[pytest.CollectReport]) -> None:
    """Tell the parts of the session about files that broke before the first performance test was collected."""
    for name in HEARING:
        if (part := config.pluginmanager.get_plugin(name)) is not None:
            for report in reports:
                part.pytest_collectreport(report)


__all__ = [
    "pytest_collection_finish",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_itemcollected",
    "pytest_report_header",
    "pytest_report_teststatus",
    "pytest_runtest_call",
    "pytest_runtest_makereport",
    "pytest_runtest_setup",
    "pytest_runtest_teardown",
    "pytest_runtestloop",
    "pytest_sessionfinish",
    "pytest_unconfigure",
]
