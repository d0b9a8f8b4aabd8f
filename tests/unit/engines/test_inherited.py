"""What an engine's process takes over from the shell that runs pytest."""

from pathlib import Path

import pytest

from pytest_llmperf.engines.environment import Environment
from pytest_llmperf.engines.launch import inherited


@pytest.mark.parametrize(
    ("prefix", "found"),
    [
        (("/opt/engines/vllm/bin/python",), "/opt/engines/vllm/bin:/usr/local/bin:/usr/bin"),
        (("/opt/tools/vllm", "--x"), "/opt/tools:/usr/local/bin:/usr/bin"),
        (("/usr/bin/python3",), "/usr/local/bin:/usr/bin"),  # found there already: the order is the user's
        (("vllm",), "/usr/local/bin:/usr/bin"),
    ],
)
def test_what_lies_beside_its_interpreter_can_be_called_by_name(monkeypatch, prefix, found):
    """ninja, above all, which FlashInfer and PyTorch's extensions call."""
    monkeypatch.setenv("PATH", "/usr/local/bin:/usr/bin")
    assert inherited(Environment(prefix, True, None, "here"))["PATH"] == found


def test_a_bundle_s_packages_are_found_by_an_interpreter_that_lacks_them(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/ours")
    monkeypatch.delenv("PATH")
    env = inherited(Environment(("/opt/torch/bin/python3",), True, Path("/bundle"), "a bundle"))
    assert env["PYTHONPATH"] == "/bundle"
    assert env["PATH"].startswith("/opt/torch/bin:")
