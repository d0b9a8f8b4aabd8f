"""Fixtures for real engines: they find the engines, run a test file with an engine, and skip if it is missing."""

import os
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def place(engine):
    """The engine's environment: .engines/ENGINE-cpu, or what LLMPERF_ENGINE_CPU names."""
    return Path(os.environ.get(f"LLMPERF_{engine.upper()}_CPU", ROOT / ".engines" / f"{engine}-cpu"))


@pytest.fixture(autouse=True)
def _engines_are_installed(request):
    """A module names what it needs as ENGINES, a parametrized test as `which`; vLLM is what the others need."""
    callspec = getattr(request.node, "callspec", None)
    named = callspec.params.get("which") if callspec else None
    for engine in [named] if named else getattr(request.module, "ENGINES", ["vllm"]):
        if not (place(engine) / "bin" / "python").exists():
            missing = f"{place(engine)} is missing: make engine-{engine}-cpu"
            if os.environ.get("CI"):
                pytest.fail(missing)
            pytest.skip(missing)


@pytest.fixture
def run_real(pytester):
    """Run a test file's text with the real engines; gives (result, test name → set of JUnit tags)."""

    def run(text, *arguments):
        pytester.makepyfile(test_real=text)
        engines = [f"--llmperf-engine={engine}={place(engine)}" for engine in ("vllm", "sglang")]
        engines.append(f"--llmperf-engine=transformers={place('vllm')}")
        fixed = ("-m", "cpu", "-p", "no:cacheprovider", "--junitxml=junit.xml", "-rA")
        result = pytester.runpytest_subprocess(*fixed, *engines, *arguments)
        cases = ET.parse(Path(pytester.path, "junit.xml")).getroot().iter("testcase")
        return result, {case.get("name"): {child.tag for child in case} & {"failure", "error"} for case in cases}

    return run
