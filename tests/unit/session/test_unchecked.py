"""Which tests contain a check: the source decides, also where Python compiles no code for it."""

from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location

import pytest

from pytest_llmperf.session.unchecked import contains_check, in_project

SOURCE = '''
import functools
import judging_helpers

def returned(perf, run):
    return
    perf.check(run, "error_rate == 0")

def measured(perf, spec):
    perf.measure(spec)

def asserted(perf, run):
    assert check(run) and compare(run)

def check(run): return run
def compare(run): return run

def judge(perf, run):
    if run:
        perf.claim(run)

def through_a_function(perf, run): judge(perf, run)
def through_a_module(perf, run): judging_helpers.judge(perf, run)
def through_a_lambda(perf, run): return lambda: perf.compare("a / b")

def decorated(function):
    @functools.wraps(function)
    def around(*given): return function(*given)
    return around

@decorated
def behind_a_decorator(perf, run): perf.check(run)

def recorded(perf, run): return run and perf.record(run)
def limited(perf, spec): perf.accuracy(spec, "sums.yaml", at_least=0.5)
def reported(perf, spec, **options): perf.accuracy(spec, "sums.yaml", **options)

def through_a_closure():
    def inner(perf): perf.check(perf)
    def test(perf): inner(perf)
    return test

closed = through_a_closure()

class TestIt:
    def _judge(self, perf): perf.check(perf)
    def method(self, perf): self._judge(perf)

method = TestIt().method
around_itself = lambda perf: around_itself(perf)
'''


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("project")


@pytest.fixture(scope="module")
def module(root):
    (root / "judging_helpers.py").write_text("def judge(perf, run): perf.check(run)\n")
    (root / "suite.py").write_text(SOURCE)
    spec = spec_from_file_location("suite", root / "suite.py")
    module = module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(root)
        spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", [
    "returned", "judge", "through_a_function", "through_a_module", "through_a_lambda", "behind_a_decorator", "closed",
    "method", "limited", "recorded",
])
def test_check_in_the_code_of_a_test_is_found(module, root, name):
    assert contains_check([getattr(module, name)])


@pytest.mark.parametrize("name", ["measured", "asserted", "around_itself", "reported"])
def test_functions_of_other_names_and_measurements_are_no_checks(module, root, name):
    assert not contains_check([getattr(module, name)])


def test_code_of_installed_packages_is_not_searched(module, root):
    assert not in_project(pytest.skip)
    assert not in_project(len)
    (root / "site-packages").mkdir()
    (root / "site-packages/installed_helpers.py").write_text("def judge(perf, run): perf.check(run)\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(root / "site-packages")
        assert not contains_check([import_module("installed_helpers").judge])
