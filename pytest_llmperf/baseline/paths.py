"""Where the baseline of a test lies: readable, inside the folder, and no other test's."""

from __future__ import annotations

import hashlib
import re
from pathlib import PurePosixPath

from pytest_llmperf.results.conditions import EMULATED

LONGEST = 150  # file systems take 255 bytes
_FOLDER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
# A function has neither brackets nor "-", so its parameters begin at the first "-".
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*(-[A-Za-z0-9_.-]+)?")


def bare_test(test: str, kind: str) -> str:
    """A test's id without the kind's parameter, which the folder says already.

    >>> bare_test("suites/test_x.py::test_y[h200-engine0]", "emulated-h200")
    'suites/test_x.py::test_y[engine0]'
    """
    function, bracket, rest = test.partition("[")
    parameters = rest.removesuffix("]").split("-")
    if not bracket or (hardware := kind.removeprefix(EMULATED)) not in parameters:
        return test
    parameters.remove(hardware)
    return f"{function}[{'-'.join(parameters)}]" if parameters else function


def baseline_path(test: str, kind: str) -> str:
    """Path of its file, relative to the folder of all baselines: "h200/serving/test_y-engine0.json".

    What is not plain letters, digits, "_", "." and "-" is replaced, and a digest of the name then keeps it apart.
    Two files of one name in different folders share it: `Baseline.test` says whose it is.
    """
    file, _, name = bare_test(test, kind).partition("::")
    suite = PurePosixPath(file.replace("\\", "/")).stem.removeprefix("test_")
    function, bracket, parameters = name.partition("[")
    file_name = function.replace("::", ".") + (f"-{parameters.removesuffix(']')}" if bracket else "")
    plain = _NAME.fullmatch(file_name) is not None and "." not in function and "-" not in function
    return "/".join((_folder(kind), _folder(suite), f"{_safe(file_name, name, plain=plain)}.json"))


def _folder(name: str) -> str:
    return _safe(name, name, plain=_FOLDER.fullmatch(name) is not None)


def _safe(shown: str, name: str, *, plain: bool) -> str:
    if plain and len(shown) <= LONGEST:
        return shown
    readable = re.sub(r"[^A-Za-z0-9_.-]+", "-", shown).strip("-.")[:LONGEST]
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{readable}~{digest}"
