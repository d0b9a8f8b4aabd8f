"""Finds where a router is installed, and which version."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

from pytest_llmperf.engines.process.environment import Environment, Installations
from pytest_llmperf.engines.process.installed import installed_version
from pytest_llmperf.engines.routers.adapter import RouterAdapter
from pytest_llmperf.errors import EnvironmentMissing, SpecError, did_you_mean
from pytest_llmperf.model.deployment import Router

SYSTEM_PROGRAMS = ("/usr/sbin", "/sbin")  # not on the PATH of ordinary users
TIMEOUT_S = 60.0
VERSION = re.compile(r"\d+(?:\.\d+)+")
OPTION = re.compile(r"--([a-z][a-z0-9-]*)")
POLICIES = re.compile(r"--policy \{([^}]*)\}")


def router_environment(adapter: RouterAdapter, installations: Installations) -> Environment:
    """How to run a router's command.

    Looks at the configured place first. A package is then looked for as an engine's package, a program on PATH.

    Raises:
        EnvironmentMissing: the router is not installed. The message names the places and the next command.
    """
    if adapter.package or installations.configured_place(adapter.name) is not None:
        return installations.find_environment(adapter.name, adapter.package or adapter.name)
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *SYSTEM_PROGRAMS])
    program = shutil.which(adapter.program, path=path)
    if program is None:
        raise EnvironmentMissing(
            f"The router {adapter.name} is not installed: there is no program {adapter.program} on PATH, and none in "
            f"{' or '.join(SYSTEM_PROGRAMS)}. Install the program, for instance with `apt-get install "
            f"{adapter.program}`, or name its place with --llmperf-engine {adapter.name}=PLACE."
        )
    return Environment((program,), False, None, program)


def router_version(adapter: RouterAdapter, environment: Environment) -> str:
    """The installed version; "unknown" if nothing states the version."""
    if adapter.package:
        return installed_version(environment, adapter.package) or "unknown"
    found = VERSION.search(_printed((*environment.prefix, "-v"), environment.pythonpath))
    return found.group() if found else "unknown"


def check_options(adapter: RouterAdapter, router: Router, environment: Environment) -> None:
    """Raise SpecError for a policy or option that the installed router does not know, if the router can be asked."""
    words = adapter.help_arguments() if environment.is_python else ()
    printed = _printed((*environment.prefix, *words), environment.pythonpath) if words else ""
    known = {word.replace("-", "_") for word in OPTION.findall(printed)}
    policies = listed[1].split(",") if (listed := POLICIES.search(printed)) else [router.policy]
    if router.policy not in policies:
        raise SpecError(f"{router}: {adapter.name} {router_version(adapter, environment)} has no policy "
                        f"{router.policy}. Choose one of {', '.join(policies)}.")
    for name in router.values if known else ():
        if name not in known and name not in adapter.switches:
            raise SpecError(f"{router}: {adapter.name} {router_version(adapter, environment)} has no option {name}."
                            f"{did_you_mean(name, known, ' Did you mean {}?')} See the options with "
                            f"`{' '.join((*environment.prefix, *words))}`.")


@cache
def _printed(command: tuple[str, ...], pythonpath: Path | None) -> str:
    """What a command prints; "" if it does not run."""
    env = os.environ if pythonpath is None else {**os.environ, "PYTHONPATH": str(pythonpath)}
    try:
        printed = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
                                 stdin=subprocess.DEVNULL, env=env)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return printed.stdout + printed.stderr
