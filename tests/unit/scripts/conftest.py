"""Scripts are no package: tests import each script from the folder of the scripts."""

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
