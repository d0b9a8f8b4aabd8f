"""A hardware kind that a project defines by a row, and markers that look like a GPU and are no kind."""

import pytest

from pytest_llmperf.cli import main
from pytest_llmperf.kinds import GPU_KINDS, SHIPPED_NAMES
from pytest_llmperf.kinds.rows import SHIPPED, kind_of_row, row_of_kind
from pytest_llmperf.telemetry.hardware import gpu_kind
from tests.conftest import BUSY_MACHINE, STEADY_AT_ONCE

ROW = """
[tool.llmperf.kinds.rtx_5090]
nvml_words = ["rtx", "5090"]
nvml_memory_gib = 31.84
cuda_memory_gib = 31.36
bandwidth_bytes_per_s = 1.792e12
cache_bytes = 72e6
bf16_flops = 209.5e12
fp8_flops = 419e12
pcie_bytes_per_s = 32e9
gpu_hour_price = "0.50 USD 2026-11-01"
"""
SUITE = """
import pytest
from pytest_llmperf import by_kind, closed, random_tokens, vllm

@by_kind(rtx_5090={"limit": "tpot_mean <= 10s"}, h200={"limit": "tpot_mean <= 50ms"})
def test_decode(case, perf):
    run = perf.measure(vllm("llama-3.1-8b", max_model_len=2048),
                       random_tokens(input=64, output=8, arrivals=closed(1), requests=6))
    perf.check(run, case.limit, "error_rate == 0")
"""
MARKED = """
import pytest

@pytest.mark.{marker}
def test_service(perf):
    pass
"""


@pytest.fixture
def run(pytester):
    def run(suite, *args, settings=""):
        pytester.makepyprojecttoml("[tool.pytest.ini_options]\n" + settings)
        pytester.makepyfile(test_it=suite)
        return pytester.runpytest_subprocess("-p", "no:cacheprovider", *args)

    return run


@pytest.mark.emulated
@pytest.mark.parametrize("clock", [(), ("--emulate-clock=real",)], ids=["virtual", "real"])
def test_project_kind_is_marker_case_and_emulated_gpu(run, pytester, clock):
    pytester.makeconftest(STEADY_AT_ONCE)
    settings = f"[tool.llmperf]\n{BUSY_MACHINE}{ROW}"
    result = run(SUITE, "-m", "rtx_5090", "--emulate", "rtx_5090", *clock, settings=settings)
    result.assert_outcomes(passed=1, deselected=1)
    result.stdout.fnmatch_lines(["*emulated rtx_5090*"])
    (run_file,) = pytester.path.glob(".llmperf/runs/*/tests/*.json")
    text = run_file.read_text()
    assert '"hardware": "emulated rtx_5090"' in text
    assert "0.5 USD 2026-11-01" in text


@pytest.mark.parametrize("marker", ["l40", "h20", "a1000", "rtx_5090", "h10"])
@pytest.mark.parametrize("dist", [(), ("-n", "1")], ids=["plain", "xdist"])
def test_marker_of_an_undefined_gpu_never_passes(run, marker, dist):
    result = run(MARKED.format(marker=marker), *dist)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"*llmperf USAGE: @pytest.mark.{marker}: {marker} is no hardware kind.*"
                                 f"[[]tool.llmperf.kinds.{marker}]*markers = *"])


def test_selected_gpu_that_no_kind_describes_is_a_usage_error(run):
    result = run(MARKED.format(marker="h200"), "-m", "h20")
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*-m 'h20': h20 is no hardware kind. Did you mean h200?*"])


@pytest.mark.parametrize("marker", ["t4", "slow", "gpu"])
def test_registered_or_unrelated_marker_is_no_kind(run, marker):
    result = run(MARKED.format(marker=marker), settings='markers = ["t4: tier 4"]\n')
    assert "is no hardware kind" not in result.stdout.str() + result.stderr.str()
    assert result.ret == 0


def test_marker_without_performance_test_stays_pytests_own(run):
    result = run("import pytest\n\n@pytest.mark.t4\ndef test_tier(): pass\n")
    result.assert_outcomes(passed=1)


@pytest.mark.parametrize(("row", "problem"), [
    ('[tool.llmperf.kinds.h200]\npower_w = 1\n', "*kinds.h200: this kind is known already; choose another name*"),
    ("[tool.llmperf]\nkinds = 3\n", "*pyproject.toml: kinds = 3: must be a table *tool.llmperf.kinds.NAME*"),
    ('[tool.llmperf.kinds.rtx-4090]\npower_w = 1\n', "*'rtx-4090' is no name*bf16_flops is missing*"),
    (ROW.replace("209.5e12", "900e12"), "*bf16_flops = 9e+14 is 502 FLOP for each byte*figure with sparsity?*"),
    (ROW.replace("419e12", "838e12"), "*fp8_flops = 8.38e+14 is 4.0 times bf16_flops. Is this *sparsity?*"),
    (ROW.replace("rtx_5090", "h100_pcie").replace('["rtx", "5090"]', '["h100", "pcie"]').replace("209.5e12", "1513e12"),
     "*kinds.h100_pcie: bf16_flops = 1.513e+15, and a shipped kind of this name has 9.89e+14.*add dense = true*"),
    (ROW.replace('"rtx", "5090"', '"rtx5090"'), "*no name that nvidia-smi -L shows has the word 'rtx5090'*"),
    (ROW.replace('"rtx", "5090"', '"GeForce"'), "*these words are in the names of many GPU models*"),
    (ROW + ROW.replace("rtx_5090", "mine"), "*kinds.mine: the kind rtx_5090 stands for the same GPU.*"),
    (ROW.replace("rtx_5090", "mine").replace("5090", "4090").replace("31.84", "24"),
     "*kinds.mine: the kind rtx_4090 stands for the same GPU. Mark tests with rtx_4090*"),
    (ROW + "bandwith = 3\n", "*kinds.rtx_5090: bandwith: unknown; known: *bandwidth_bytes_per_s*"),
    (ROW.replace("31.84", "-31.84"), "*nvml_memory_gib = -31.84: must be a number above 0*"),
    (ROW.replace("0.50 USD 2026-11-01", "0.50"), "*kinds.rtx_5090: gpu_hour_price: lacks a currency and a date*"),
])
def test_wrong_row_of_a_kind_is_a_usage_error(run, row, problem):
    result = run(MARKED.format(marker="h200"), settings=row)
    assert result.ret == 4
    result.stderr.fnmatch_lines([problem])


@pytest.mark.parametrize("command", ["show", "doctor", "baselines list"])
def test_commands_accept_the_kind_of_a_project(pytester, command, capsys):
    pytester.makepyprojecttoml("[tool.pytest.ini_options]\n" + ROW)
    main(command.split())
    assert "rtx_5090" not in capsys.readouterr().err


def test_command_refuses_a_kind_that_ships(pytester, capsys):
    pytester.makepyprojecttoml(ROW.replace("rtx_5090", "h200"))
    assert main(["show"]) == 2
    assert "kinds.h200: this kind is known already; choose another name" in capsys.readouterr().err


def test_undefined_emulated_kind_is_a_usage_error(run):
    result = run(MARKED.format(marker="h200"), "--emulate", "h20")
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*--emulate h20: there is no such GPU kind. Did you mean h200? Known: l4, a100*"])


def test_kind_of_a_package_has_one_marker_line(pytester, monkeypatch):
    pytester.makepyfile(own_kinds="""
        from dataclasses import replace
        from pytest_llmperf.kinds.rows import SHIPPED
        OWN = replace(SHIPPED[0], name="b300", nvml_words=frozenset({"b300"}))
    """)
    metadata = pytester.mkdir("own_kinds-1.0.dist-info")
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: own-kinds\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[llmperf]\nkind.b300 = own_kinds:OWN\n")
    monkeypatch.setenv("PYTHONPATH", str(pytester.path))
    lines = pytester.runpytest_subprocess("--markers", "-m", "b300").outlines
    assert lines.count("@pytest.mark.b300: runs on this GPU") == 1


def test_every_shipped_row_has_a_name_in_unrelated_runs():
    assert tuple(kind.name for kind in SHIPPED) == SHIPPED_NAMES


@pytest.mark.parametrize("kind", SHIPPED, ids=lambda kind: kind.name)
def test_shipped_kind_equals_the_kind_of_its_row(kind):
    row = row_of_kind(kind)
    assert kind_of_row(kind.name, row) == kind
    assert kind_of_row(kind.name, {**row, "dense": False}) == kind  # no shipped peak looks like one with sparsity


def test_confirmed_dense_peak_is_accepted():
    row = {**row_of_kind(SHIPPED[0]), "bf16_flops": 1e15, "fp8_flops": 2e15}
    assert kind_of_row("own", row).bf16_flops == 1e15
    with pytest.raises(ValueError, match="dense = true"):
        kind_of_row("own", {**row, "dense": False})


def test_name_with_words_of_two_kinds_is_of_the_kind_with_more_words():
    def own(*words):
        return GPU_KINDS.added([kind_of_row("own", {**row_of_kind(SHIPPED[0]), "nvml_words": list(words)})], "test")

    with own("l4", "24gb"):
        assert gpu_kind("NVIDIA L4 24GB") == "own"
    with own("l4"), pytest.raises(ValueError, match="NVIDIA L4 is of the kinds l4 and own"):
        gpu_kind("NVIDIA L4")
