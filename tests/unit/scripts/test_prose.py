"""The gate on prose finds hard places."""

import ast

import pytest


@pytest.fixture
def project(load_script, tmp_path, monkeypatch):
    """The script, on an empty project."""
    script = load_script("prose")
    monkeypatch.setattr(script, "ROOT", tmp_path)
    for folder in ("docs", "scripts", "tests", "pytest_llmperf"):
        (tmp_path / folder).mkdir()
    return script


@pytest.mark.parametrize(("name", "found"), [
    ("test_semaphore_of_living_bystander_survives_cleanup", False),
    ("test_usage_that_falls_is_named", False),
    ("test_settings_of_the_second_server", True),
])
def test_test_name_without_verb_is_found(project, name, found):
    tree = ast.parse(f"def {name}():\n    assert True\n")
    assert [place.what for place in project.places_in_code("tests/test_x.py", tree)] == \
        ["test name without an outcome"] * found


@pytest.mark.parametrize(("name", "found"), [
    ("test_interrupt_leaves_no_process_and_partial_results", True),
    ("test_interrupt_leaves_no_process_and_no_results", False),
    ("test_check_sends_no_request_and_keeps_the_measurement", False),
])
def test_ambiguous_no_and_in_a_test_name_is_found(project, name, found):
    tree = ast.parse(f"def {name}():\n    assert True\n")
    assert [place.what for place in project.places_in_code("tests/test_x.py", tree)] == \
        ["test name with an ambiguous “no … and …”"] * found


@pytest.mark.parametrize(("docstring", "found"), [
    ("Of one layer.", True), ("None if a run has no value.", True),
    ("Mean over the runs; None if one has none.", False),
    ("For each suite run, whether it is red.", False), ("Offset of each session.", False),
])
def test_docstring_without_subject_is_found(project, docstring, found):
    tree = ast.parse(f'def parameters():\n    """{docstring}"""\n')
    assert [place.what for place in project.places_in_code("pytest_llmperf/x.py", tree)] == \
        ["docstring without a subject"] * found


@pytest.mark.parametrize(("raised", "found"), [("it is negative.", True), ("the value is negative.", False)])
def test_pronoun_in_raises_is_found(project, raised, found):
    docstring = f"Read a value.\n\n    Raises:\n        ValueError: {raised}\n    "
    tree = ast.parse(f'def read(value):\n    """{docstring}"""\n')
    found_places = [place.what for place in project.places_in_code("pytest_llmperf/x.py", tree)]
    assert found_places == ["pronoun in Raises"] * found


@pytest.mark.parametrize(("body", "found"), [
    ("assert answer() == 1", False), ("with pytest.raises(ValueError): answer()", False), ("answer()", True),
])
def test_test_without_assertion_is_found(project, body, found):
    tree = ast.parse(f"def test_server_answers():\n    {body}\n")
    assert [place.what for place in project.places_in_code("tests/test_x.py", tree)] == \
        ["test without an assertion"] * found


@pytest.mark.parametrize(("raised", "found"), [
    ('UsageError(f"{path}: the run file cannot be read: {error}.")', True),
    ('UsageError(f"{path}: the run file cannot be read. Measure the test again.")', False),
    ('UsageError(f"{option}: a share must be below 1")', False),
    ('ValueError("the samples have no values at all")', False),
    ('UsageError(f"{path}: {error}")', False),
    ('UsageError(f"{path}: the run file cannot be read. {remedy}")', False),
    ('UsageError(f"{path}: the run file cannot be read. {error}")', True),
    ('UsageError("the file has no runs of this kind")', False),
])
def test_error_without_next_step_is_found(project, raised, found):
    tree = ast.parse(f"raise {raised}\n")
    assert [place.what for place in project.places_in_code("pytest_llmperf/x.py", tree)] == \
        ["error without a next step"] * found


def test_private_word_is_refused_until_it_is_replaced(project, tmp_path, capsys):
    page = tmp_path / "docs/load.md"
    page.write_text("The limit on lateness, over all runs.\n")
    assert project.main() == 1
    assert "docs/load.md:1: “lateness” instead of “send delay”" in capsys.readouterr().err
    page.write_text("The limit on send delay.\n")
    assert project.main() == 0
