"""Environment variables of a server process: inherited, of the engine, of the spec, and recorded."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pytest_llmperf.engines.adapter import EngineAdapter, Placement
from pytest_llmperf.engines.adapters import startable
from pytest_llmperf.engines.models.draft_models import needs_hub
from pytest_llmperf.engines.process.environment import Environment
from pytest_llmperf.engines.spec import flags_of
from pytest_llmperf.model.engine import EngineSpec
from pytest_llmperf.process.places import home_of, replaced_home, writable

# Variables that configure pytest and its interpreter are not for servers. The spec alone configures engines and
# LMCache: their variables in a shell would change the measurement, and no condition would name them.
NOT_INHERITED = (
    "PYTHONPATH", "PYTHONHOME", "PYTEST_", "COV_", "PYTHONWARNINGS", "PYTHONDEVMODE", "VLLM_", "SGLANG_", "SGL_",
    "LMCACHE_",
)  # fmt: skip
# Folders of a site for files that engines compile and look up. They change only the duration of a start.
INHERITED_PLACES = frozenset({"VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT", "SGLANG_CACHE_DIR", "SGLANG_DG_CACHE_DIR"})
# Variables of this process that a server in a container gets beside those of its spec and adapter.
INTO_CONTAINER = ("HF_", "CUDA_VISIBLE_DEVICES", "PYTHONSAFEPATH")


def inherited_environment(environment: Environment, root: Path) -> dict[str, str]:
    """The variables of this process that a process of an engine inherits.

    PATH gets the folder of the interpreter, because packages call tools there by name: FlashInfer and PyTorch compile
    with `ninja`.

    Args:
        environment: environment of the engine.
        root: folder where the process runs.
    """
    env = {name: value for name, value in os.environ.items()
           if name in INHERITED_PLACES or not name.startswith(NOT_INHERITED)}
    beside, path = Path(environment.prefix[0]).parent, env.get("PATH", os.defpath)
    if beside.is_absolute() and str(beside) not in path.split(os.pathsep):
        env["PATH"] = os.pathsep.join([str(beside), path])
    if environment.pythonpath is not None:
        env["PYTHONPATH"] = str(environment.pythonpath)
    env |= _home_of_servers(env)
    if _shadowing_modules(root):
        env["PYTHONSAFEPATH"] = "1"  # only then: what an engine starts may be a script that imports its neighbours
    return env


def _home_of_servers(env: Mapping[str, str]) -> dict[str, str]:
    """A private folder in place of a home that cannot be written. Models that the home has stay in use."""
    home = home_of(env)
    if writable(home):
        return {}
    models = home / ".cache" / "huggingface"
    hub = {"HF_HOME": env.get("HF_HOME", str(models))} if models.is_dir() else {}
    return {"HOME": str(replaced_home()), **hub}


def _shadowing_modules(root: Path) -> bool:
    """Whether a file or folder there, such as a suite's, would be imported instead of an engine or of LMCache."""
    return any((root / place).exists() for name in (*startable(), "lmcache") for place in (name, f"{name}.py"))


def child_environment(spec: EngineSpec, adapter: EngineAdapter, placement: Placement) -> dict[str, str]:
    """The complete environment of a server: inherited variables, then the adapter's, then those of the spec."""
    env = inherited_environment(placement.environment, placement.root)
    if Path(placement.model.path_or_hub_id).exists() and not needs_hub(flags_of(spec), placement.root):
        env.setdefault("HF_HUB_OFFLINE", "1")  # a hub that does not answer must not delay the start
    return env | adapter.environment(spec, placement) | dict(spec.env)


def container_variables(
    spec: EngineSpec, adapter: EngineAdapter, placement: Placement, env: Mapping[str, str]
) -> frozenset[str]:
    """Names of the variables that a server in a container gets. The image defines PATH and all other variables."""
    ours = {*adapter.environment(spec, placement), *dict(spec.env), *adapter.host_variables(spec, placement)}
    return frozenset(name for name in env if name in ours or name.startswith(INTO_CONTAINER))


def host_environment(
    spec: EngineSpec, adapter: EngineAdapter, placement: Placement, env: Mapping[str, str]
) -> dict[str, str]:
    """The variables of a server that a machine decides and that change performance.

    Args:
        env: the complete environment of the server, from `child_environment`.
    """
    return {name: env.get(name, "unset") for name in adapter.host_variables(spec, placement)}
