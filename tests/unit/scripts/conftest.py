"""Scripts are no package; their tests load them as Python does that runs one."""

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))


@pytest.fixture(scope="session")
def load_script() -> Callable[[str], ModuleType]:
    return import_module
