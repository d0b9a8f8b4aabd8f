"""Coefficients of a host, fitted to runs that the emulator made with changed coefficients."""

from dataclasses import replace
from math import exp

import pytest

from pytest_llmperf.calibration.host_fit import OF_A_HOST, Means, fitted, held_out, point_of
from pytest_llmperf.emulator.cost.coefficients import coefficients_for, from_numbers, numbers_of
from pytest_llmperf.emulator.flags.launch import machine
from pytest_llmperf.emulator.flags.vllm import vllm_launch
from pytest_llmperf.kinds import GPU_KINDS
from pytest_llmperf.model.request import Request

LAUNCH = vllm_launch(["serve", "llama-3.1-8b", "--max-model-len", "4096"], machine("h100", 8), {})
LOADS = [(1, 64, 16), (4, 256, 8), (12, 128, 8), (24, 256, 6), (2, 800, 8), (8, 64, 16), (16, 256, 8), (1, 512, 16)]
SHIPPED = numbers_of(coefficients_for("vllm", GPU_KINDS["h100"]))


def measured(host):
    """Points whose TPOT and TTFT a host with these coefficients has."""
    for number, (clients, prompt, tokens) in enumerate(LOADS):
        requests = [Request(k, (-1 - k - 1000 * number, *range(prompt - 1)), tokens, prompt)
                    for k in range(clients + 2)]
        point = point_of(LAUNCH, requests, clients, Means(1.0, 1.0))
        tpot, ttft = point.errors(from_numbers(host, "a host"))
        yield replace(point, measured=Means(ttft_ms=exp(ttft), tpot_ms=exp(tpot)))


def test_fit_to_a_slower_host_predicts_the_runs_that_it_has_not_seen():
    host = {**SHIPPED, "weight_bandwidth": SHIPPED["weight_bandwidth"] * 0.85, "step_s": SHIPPED["step_s"] * 1.5}
    before, after = held_out(list(measured(host)), SHIPPED)
    assert before > 0.1
    assert after < 0.02


def test_fitted_shares_of_the_peak_do_not_exceed_the_data_sheet():
    """A host that reads faster than its data sheet allows: the fit ends at the peak."""
    numbers = fitted(list(measured({**SHIPPED, "weight_bandwidth": 1.6}))[:4], SHIPPED)
    assert all(numbers[name] <= most for name, (_, most) in OF_A_HOST.items())
    assert numbers["weight_bandwidth"] > 0.995


def test_fit_is_not_better_than_shipped_coefficients_that_are_right():
    before, after = held_out(list(measured(SHIPPED))[:4], SHIPPED)
    assert before == pytest.approx(0, abs=1e-9)
    assert after >= before
