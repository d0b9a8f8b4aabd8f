"""pytest's view of this package: hooks and fixtures, no computing. Each hook lives in the module of its subject."""

from __future__ import annotations

from pytest_llmperf.plugin.configure import (
    pytest_addhooks,
    pytest_addoption,
    pytest_configure,
    pytest_load_initial_conftests,
    pytest_report_header,
    pytest_unconfigure,
)
from pytest_llmperf.plugin.endings import (
    pytest_make_collect_report,
    pytest_runtest_call,
    pytest_runtest_makereport,
    pytest_runtest_teardown,
)
from pytest_llmperf.plugin.fixtures import engine, perf, pytest_generate_tests
from pytest_llmperf.plugin.inputs import pytest_runtestloop
from pytest_llmperf.plugin.kinds import pytest_collection_finish, pytest_itemcollected, pytest_runtest_setup
from pytest_llmperf.plugin.ordering import pytest_collection_modifyitems
from pytest_llmperf.plugin.verdicts import (
    pytest_report_teststatus,
    pytest_sessionfinish,
)

__all__ = [
    "engine",
    "perf",
    "pytest_addhooks",
    "pytest_addoption",
    "pytest_collection_finish",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_generate_tests",
    "pytest_itemcollected",
    "pytest_load_initial_conftests",
    "pytest_make_collect_report",
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
