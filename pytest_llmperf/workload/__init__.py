"""Seeded requests and their arrival times: the same values on every machine, for every engine and every model."""

from pytest_llmperf.workload.arrivals import Arrivals, at_times, closed, constant, gamma, poisson, ramp, recorded
from pytest_llmperf.workload.base import Workload
from pytest_llmperf.workload.multi_turn import exponential, multi_turn
from pytest_llmperf.workload.random_tokens import mixed, random_tokens, shared_prefix
from pytest_llmperf.workload.sharegpt import sharegpt
from pytest_llmperf.workload.trace import anonymise, trace
from pytest_llmperf.workload.users import across_models, cancelled, retried

__all__ = [
    "Arrivals",
    "Workload",
    "across_models",
    "anonymise",
    "at_times",
    "cancelled",
    "closed",
    "constant",
    "exponential",
    "gamma",
    "mixed",
    "multi_turn",
    "poisson",
    "ramp",
    "random_tokens",
    "recorded",
    "retried",
    "shared_prefix",
    "sharegpt",
    "trace",
]
