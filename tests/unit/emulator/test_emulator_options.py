"""The emulator's own options beside the engine's command line."""

import pytest

from pytest_llmperf.emulator.config import Link
from pytest_llmperf.emulator.options import read_options
from pytest_llmperf.emulator.quantities import UsageError, divisor, duration_s, fraction


def read(text):
    return read_options(text.split())


def test_engine_command_line_is_read_after_two_dashes():
    options = read("--hardware h200 --gpus 4 --fault leak --noise step=1% --noise-seed 5 -- serve M --port 5 --gpus 9")
    assert (options.machine.gpu.name, options.machine.gpus, options.engine) == ("h200", 4, "vllm")
    assert options.engine_argv == ("serve", "M", "--port", "5", "--gpus", "9")
    assert options.faults.leaked_blocks == 1
    assert (options.noise.step, options.noise.seed, options.seed) == (0.01, 5, 5)


def test_short_form_accepts_emulator_and_engine_options_together():
    options = read("--model tiny --hardware l4 --max-num-seqs 8 --port 5")
    assert options.engine_argv == ("--model", "tiny", "--max-num-seqs", "8", "--port", "5")


def test_module_name_selects_engine():
    assert read("--hardware h200 -- -m sglang.launch_server --model-path M").engine == "sglang"
    options = read("--hardware h200 -- -m vllm.entrypoints.cli.main serve M")
    assert (options.engine, options.engine_argv) == ("vllm", ("serve", "M"))
    with pytest.raises(UsageError, match=r"sglang\.launch_server"):
        read("--hardware h200 --engine vllm -- -m sglang.launch_server")


def test_split_and_acceptance_options_are_read():
    options = read("--hardware h200 --split 50e9:20us --acceptance 0.9,50% --model tiny")
    assert options.split == Link(50e9, pytest.approx(20e-6))
    assert options.acceptance == (0.9, 0.5)
    assert read("--hardware h200 --split 1e9 --model tiny").split == Link(1e9, 0.0)


@pytest.mark.parametrize(
    "text",
    ["--hardware x", "--hardware h200 --gpus 0", "--hardware h200 --split fast", "--hardware h200 --acceptance 2",
     "--hardware h200 --noise x", "--hardware h200 --fault x", ""],
)  # fmt: skip
def test_invalid_emulator_option_is_refused(text):
    with pytest.raises(UsageError):
        read(text)


def test_quantities_are_parsed_or_refused():
    assert (fraction("5%", "x"), fraction("-0.2", "x"), fraction("+5%", "x")) == (0.05, -0.2, 0.05)
    assert (divisor("/4", "x"), duration_s("50ms", "x"), duration_s("2s", "x")) == (4.0, 0.05, 2.0)
    for read_one, text in ((fraction, "nan"), (fraction, "a%"), (divisor, "/0"), (divisor, "4"), (duration_s, "5")):
        with pytest.raises(UsageError, match="x: "):
            read_one(text, "x")
