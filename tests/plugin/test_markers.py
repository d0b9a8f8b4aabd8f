"""Hardware markers: refused and skipped tests with their reasons. These machines have no GPU."""

import pytest

from pytest_llmperf.plugin.kinds import requested_kinds, running_kind
from pytest_llmperf.telemetry.hardware import Gpu, Hardware, detect

MARKED = """
import pytest

@pytest.mark.h200
def test_gpu(): pass

@pytest.mark.cpu
def test_cpu(): pass

def test_any(): pass
"""

pytestmark = pytest.mark.skipif(bool(detect().gpus), reason="tests what a machine without a GPU says")


@pytest.mark.parametrize(
    ("expression", "kinds"),
    [
        ("", set()),
        ("h200", {"h200"}),
        ("not h200", set()),
        ("h200 or h100", {"h100", "h200"}),
        ("h200 and slow", {"h200"}),
        ("h200 and not slow", {"h200"}),
        ("slow", set()),
        ("not cpu", set()),
        ("cpu or h200", {"cpu", "h200"}),
    ],
)
def test_marker_expression_gives_requested_kinds(expression, kinds):
    assert requested_kinds(expression) == kinds


@pytest.mark.parametrize("dist", [(), ("-n", "2")], ids=["plain", "xdist"])
def test_asking_for_missing_hardware_is_a_usage_error(pytester, dist):
    pytester.makepyfile(MARKED)
    result = pytester.runpytest_subprocess("-m", "h200", *dist)
    assert result.ret == 4
    lines = result.outlines if dist else result.errlines  # under xdist the workers collect
    assert any("-m asks for h200, and this machine has no GPU" in line and "--collect-only" in line for line in lines)


def test_collecting_is_always_allowed(pytester):
    pytester.makepyfile(MARKED)
    result = pytester.runpytest_subprocess("-m", "h200", "--collect-only", "-q")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*::test_gpu*"])


def test_for_missing_hardware_is_skipped_with_reason(pytester):
    pytester.makepyfile(MARKED)
    result = pytester.runpytest_subprocess("-rs")
    result.assert_outcomes(passed=2, skipped=1)
    result.stdout.fnmatch_lines(["*needs h200; this machine has no GPU*run it on a machine with h200*"])


def test_misspelt_markers_are_refused(pytester):
    pytester.makepyfile("import pytest\n@pytest.mark.h2oo\ndef test_x(): pass\n")
    result = pytester.runpytest_subprocess("--strict-markers")
    assert result.ret != 0
    result.stdout.fnmatch_lines(["*'h2oo' not found in `markers`*"])


H200 = Hardware((Gpu(0, "NVIDIA H200", "h200", 1),), driver="580")


@pytest.mark.parametrize(
    ("kinds", "hardware", "requested", "runs_as"),
    [
        (["h200"], H200, set(), "h200"),
        (["h100"], H200, set(), None),
        (["cpu"], H200, set(), None),
        (["cpu"], H200, {"cpu"}, "cpu"),
        ([], H200, set(), "h200"),
        (["cpu", "h200"], H200, {"h200"}, "h200"),
        (["cpu"], Hardware(), set(), "cpu"),
        (["h200"], Hardware(), set(), None),
    ],
)
def test_runs_as_hardware_kind_that_matches_machine_and_option(kinds, hardware, requested, runs_as):
    assert running_kind(kinds, hardware, requested) == runs_as


@pytest.mark.parametrize("marker", ["@pytest.mark.h200", ""])
def test_with_too_few_gpus_is_skipped_with_reason(pytester, marker):
    pytester.makepyfile(f"import pytest\n{marker}\n@pytest.mark.gpus(2)\ndef test_x(): pass\n")
    pytester.makeconftest(
        "from pytest_llmperf.plugin.state import STATE\n"
        "from pytest_llmperf.telemetry.hardware import Gpu, Hardware\n"
        "def pytest_collection_modifyitems(config):\n"
        "    config.stash[STATE].hardware = Hardware((Gpu(0, 'NVIDIA H200', 'h200', 1),), driver='580')\n"
    )
    result = pytester.runpytest_subprocess("-rs")
    result.stdout.fnmatch_lines(["*needs 2 GPUs; this machine has 1 × NVIDIA H200*"])
