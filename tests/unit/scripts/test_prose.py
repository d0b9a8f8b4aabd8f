"""The measure of prose: which sentences and test names it lists, and when a change may not add some."""

import json
import shutil
import subprocess

import pytest

GIT = [shutil.which("git"), "-c", "user.name=Author", "-c", "user.email=author@example.com"]
HARD = "It is what those that have it take for one of them."
PLAIN = "The load generator sends each request at its intended time."


@pytest.fixture
def prose(load_script, tmp_path, monkeypatch):
    """The script, on a project of its own with one page and one commit."""
    script = load_script("prose")
    monkeypatch.setattr(script, "ROOT", tmp_path)
    (tmp_path / "scripts").mkdir()
    (tmp_path / "README.md").write_text(f"{HARD}\n")
    script.main(["--record"])
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "Begin"]):
        subprocess.run([*GIT, *arguments], cwd=tmp_path, check=True)
    return script


def counts(folder):
    return json.loads((folder / "scripts" / "prose_counts.json").read_text())


@pytest.mark.parametrize(("sentence", "why"), [
    (HARD, "7 of 12 words point elsewhere"),
    (PLAIN, None),
    ("It is what it is.", None),
    (" ".join(["word"] * 36), "36 words"),
])
def test_long_and_pointing_sentences_are_listed(prose, sentence, why):
    assert prose.why_hard_sentence(sentence) == why


@pytest.mark.parametrize(("name", "why"), [
    ("test_semaphore_of_living_bystander_survives_cleanup", None),
    ("test_failed_request_counts_as_infinitely_slow", None),
    ("test_its_death_is_the_units_death", "has its instead of a noun"),
    ("test_usage_that_falls_is_named", None),
    ("test_one_session_gives_a_provisional_result", None),
    ("test_stamp_of_a_read_is_that_of_the_last_event", "has that instead of a noun"),
    ("test_slo", "1 words; 3 to 12 can name subject, condition and outcome"),
    ("test_settings_of_the_second_server", "names no outcome (no verb)"),
])
def test_name_without_subject_or_outcome_is_listed(prose, name, why):
    assert prose.why_hard_name(name) == why


def test_each_kind_of_prose_is_read_from_source(prose):
    code = f'def load(path):\n    """{HARD}"""\n    raise OSError(f"{{path}}: {HARD}")\n'
    passages = list(prose.passages_of("pytest_llmperf/a.py", code))
    assert [passage.kind for passage in passages] == ["docstrings", "messages"]
    (test,) = prose.passages_of("tests/test_a.py", "def test_a():\n    assert 'text'\n")
    assert (test.kind, test.text) == ("test_names", "test_a")
    page = f"# Title\n\n| a | b |\n\n```\ncode\n```\nFirst\nline.\n- Item.\n\n{PLAIN}\n"
    assert [(passage.line, passage.text) for passage in prose.passages_of("docs/a.md", page)] == \
        [(8, "First line."), (10, "Item."), (12, PLAIN)]


def test_added_sentence_fails_and_is_named(prose, tmp_path, capsys):
    assert prose.main([]) == 0
    capsys.readouterr()
    other = HARD.replace("take", "hold")
    (tmp_path / "README.md").write_text(f"{HARD}\n\n{other}\n")
    assert prose.main([]) == 1
    printed = capsys.readouterr().err
    assert other in printed
    assert HARD not in printed


def test_smaller_count_is_recorded_and_larger_count_is_refused(prose, tmp_path):
    (tmp_path / "README.md").write_text(f"{PLAIN}\n")
    assert prose.main([]) == 0
    assert prose.main(["--record"]) == 0
    assert counts(tmp_path)["docs"] == 0
    (tmp_path / "README.md").write_text(f"{HARD}\n")
    assert prose.main(["--record"]) == 1
    assert counts(tmp_path)["docs"] == 0
