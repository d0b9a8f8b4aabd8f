"""Noise has the configured sd and autocorrelation; each fault changes its own metric and no other metric."""

import math
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from pytest_llmperf.emulator.config import EngineConfig, Speculation, Tier
from pytest_llmperf.emulator.core.sequence import Sequence
from pytest_llmperf.emulator.faults import FAULTS, Faults, parse_faults
from pytest_llmperf.emulator.noise import Disturbance, Noise, parse_noise
from pytest_llmperf.emulator.quantities import UsageError
from pytest_llmperf.kinds import GPU_KINDS
from pytest_llmperf.shapes import SHAPES

CONFIG = EngineConfig(
    engine="vllm", shape=SHAPES["tiny"], gpu=GPU_KINDS["h200"], max_model_len=4096, max_num_batched_tokens=8192,
    max_num_seqs=256, block_size=16, num_blocks=1000, tensor_parallel=2,
    speculation=Speculation(3, (0.9, 0.5, 0.1)), tiers=(Tier("cpu", 10**9, 5e10, 1e-5),),
)  # fmt: skip


def test_disturbance_without_noise_and_faults_has_factor_1():
    calm = Disturbance()
    assert calm.factors(0, 5).tolist() == [1.0] * 5
    assert calm.delays_s(0, 5).tolist() == [0.0] * 5
    assert calm.leaked_blocks == 0


def test_batched_noise_equals_noise_of_single_steps():
    noise = Disturbance(parse_noise("step=1%,ar=0.6", 7), parse_faults(["stalls=3%", "throttle=+20%:500"]))
    for first, count in ((0, 300), (4090, 20), (10_000, 5000)):
        at_once, delays = noise.factors(first, count), noise.delays_s(first, count)
        for step in range(0, count, 97):
            assert noise.factors(first + step, 1)[0] == at_once[step]
            assert noise.delays_s(first + step, 1)[0] == delays[step]


def test_step_noise_has_given_sd_and_autocorrelation():
    values = np.log(Disturbance(Noise(step=0.02, ar=0.6, seed=1)).factors(0, 200_000))
    assert values.std() == pytest.approx(0.02, rel=0.03)
    assert np.corrcoef(values[:-1], values[1:])[0, 1] == pytest.approx(0.6, abs=0.02)
    assert np.exp(values).mean() == pytest.approx(1.0, abs=0.001)


def test_session_factor_is_constant_and_run_factor_differs_between_runs():
    session = [math.log(Disturbance(Noise(session=0.01, seed=seed)).factors(0, 1)[0]) for seed in range(400)]
    assert np.std(session) == pytest.approx(0.01, rel=0.12)
    first = Disturbance(Noise(run=0.01, seed=3))
    runs = []
    for _ in range(400):
        first.begin_run()
        runs.append(math.log(first.factors(0, 1)[0]))
        assert first.factors(500, 2).tolist() == [first.factors(0, 1)[0]] * 2
    assert np.std(runs) == pytest.approx(0.01, rel=0.12)
    both = Disturbance(Noise(session=0.01, seed=3))
    first_factor = both.factors(0, 1)[0]
    both.begin_run()
    assert both.factors(0, 1)[0] == first_factor


def test_equal_seeds_give_equal_noise():
    text = "session=0.3%,run=0.5%,step=1%,ar=0.6"
    first, second, other = (Disturbance(parse_noise(text, seed)) for seed in (1, 1, 2))
    assert first.factors(0, 100).tolist() == second.factors(0, 100).tolist()
    assert first.factors(0, 100).tolist() != other.factors(0, 100).tolist()


@pytest.mark.parametrize("text", ["step", "steps=1%", "step=x", "step=-1%", "ar=1"])
def test_bad_noise_is_refused(text):
    with pytest.raises(UsageError):
        parse_noise(text, 0)


def test_step_time_is_longer_by_the_fraction():
    slow = Disturbance(faults=parse_faults(["step_time=+5%"]))
    assert slow.factors(0, 3) == pytest.approx([1.05] * 3)


def test_stalls_occur_in_given_share_of_steps():
    delays = Disturbance(faults=parse_faults(["stalls=1%:20ms"])).delays_s(0, 100_000)
    assert set(delays.tolist()) == {0.0, 0.02}
    assert (delays > 0).mean() == pytest.approx(0.01, rel=0.1)


def test_throttling_ramps_and_stays():
    ramp = Disturbance(faults=parse_faults(["throttle=+30%:100"])).factors(0, 300)
    assert ramp[0] == 1.0
    assert ramp[50] == pytest.approx(1.15)
    assert ramp[100:] == pytest.approx([1.3] * 200)


def test_number_of_leaked_blocks_is_set_by_fault():
    assert Disturbance(faults=parse_faults(["leak"])).leaked_blocks == 1
    assert Disturbance(faults=parse_faults(["leak=4"])).leaked_blocks == 4


def test_resolved_configuration_shows_only_faults_visible_to_server():
    shown = parse_faults(["chunk_budget=/4", "kv=-50%"]).resolved(CONFIG)
    assert shown == replace(CONFIG, max_num_batched_tokens=2048, num_blocks=500)
    assert parse_faults(["prefix_cache=off", "tp_link=/2", "acceptance=-0.2", "offload_bandwidth=/4"]).resolved(
        CONFIG
    ) == CONFIG


def test_hidden_configuration_contains_only_faults_unknown_to_server():
    ran = parse_faults(["prefix_cache=off", "tp_link=/2", "acceptance=-0.2", "offload_bandwidth=/4"]).hidden(CONFIG)
    assert not ran.prefix_caching
    assert ran.gpu.link_bytes_per_s == CONFIG.gpu.link_bytes_per_s / 2
    assert ran.speculation.acceptance == pytest.approx((0.7, 0.3, 0.0))
    assert ran.tiers[0].bytes_per_s == 1.25e10
    assert parse_faults(["chunk_budget=/4", "kv=-50%"]).hidden(CONFIG) == CONFIG


def test_link_fault_on_gpu_without_nvlink_halves_pcie_bandwidth():
    on_l4 = replace(CONFIG, gpu=GPU_KINDS["l4"])
    assert parse_faults(["tp_link=/2"]).hidden(on_l4).gpu.peer_bytes_per_s == on_l4.gpu.peer_bytes_per_s / 2


@pytest.mark.parametrize(
    "option",
    ["nonsense=1", "step_time=much", "chunk_budget=4", "prefix_cache=on", "errors=200%", "leak=x", "stalls=1%:5"],
)
def test_bad_faults_are_refused(option):
    with pytest.raises(UsageError, match="--fault"):
        parse_faults([option])


def test_every_listed_fault_can_be_read():
    for text in FAULTS:
        assert parse_faults([text.partition("[")[0].rstrip("=")]) != Faults()


def test_http_faults_have_given_shares_and_are_repeatable():
    faults = parse_faults(["errors=10%", "hangs=5%", "truncated=5%"])
    fates = [faults.of_request(1, number, 64) for number in range(20_000)]
    kinds = [None if fault is None else fault.kind for fault in fates]
    shares = {kind: kinds.count(kind) / len(kinds) for kind in ("refused", "error", "hang", "truncated")}
    assert shares == pytest.approx({"refused": 0.05, "error": 0.05, "hang": 0.05, "truncated": 0.05}, rel=0.15)
    assert all(0 <= fault.after_tokens < 64 for fault in fates if fault)
    assert fates[:100] == [faults.of_request(1, number, 64) for number in range(100)]
    assert Faults().of_request(1, 0, 64) is None


def test_noise_is_disabled_by_reserved_word():
    assert parse_noise("none", 3) == parse_noise("", 3)


def test_runs_of_young_server_have_longer_steps():
    young = Disturbance(parse_noise("age=4%:120s", 1))
    factors = []
    for age_s in (0.0, 119.9, 120.0, 500.0):
        young.begin_run(age_s)
        factors.append(young.factors(0, 1)[0])
    assert factors == [1.04, 1.04, 1.0, 1.0]


def test_gpu_keeps_its_factor_over_the_starts_of_servers():
    of_gpu = {(gpu, start): Disturbance(parse_noise("gpu=5%", start, gpu)).factors(0, 1)[0]
              for gpu in (0, 1) for start in (1, 2)}
    assert of_gpu[0, 1] == of_gpu[0, 2] != of_gpu[1, 1] == of_gpu[1, 2]


@pytest.mark.parametrize("text", ["age=4%", "age=4%:soon", "age_s=3", "age=-1%:9s"])
def test_invalid_age_of_noise_is_refused(text):
    with pytest.raises(UsageError, match="--noise"):
        parse_noise(text, 1)


def test_planted_wrong_answers_strike_the_requests_that_they_name():
    def struck(fault, **state):
        sequences = [Sequence(number, (1, 2, 3), 4, 0) for number in range(1000)]
        for sequence in sequences:
            for name, value in state.items():
                setattr(sequence, name, value)
        return sum(parse_faults([fault]).corrupts(0, sequence) for sequence in sequences)

    assert 150 < struck("swapped=20%") < 250
    assert struck("stale_blocks=20%") == struck("truncated_transfers=20%") == struck("wrong_weights=2") == 0
    assert 150 < struck("stale_blocks=20%", cached_tokens=16) < 250
    assert 150 < struck("truncated_transfers=20%", external_tokens=16) < 250
    assert struck("wrong_weights=2", engine=1) == 1000
    sequence = Sequence(0, (1, 2, 3), 16, 0)
    right = sequence.tokens(3, 19)
    sequence.corrupt()
    assert sequence.tokens(3, 19) != right


def test_planted_wrong_answer_is_the_same_in_each_process():
    """Python draws another hash of texts in each process."""
    code = ("from pytest_llmperf.emulator.core.sequence import Sequence\n"
            "sequence = Sequence(0, (1, 2, 3), 16, 0)\nsequence.corrupt()\nprint(sequence.tokens(3, 19))")
    answers = {subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": seed}, check=True,
                              capture_output=True, text=True).stdout for seed in "12"}
    assert len(answers) == 1
