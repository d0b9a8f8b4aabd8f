"""Task files are checked before a server starts. The interpreter of the tests reads YAML, as the harness's does."""

import sys
from pathlib import Path

import pytest

from pytest_llmperf import endpoint, vllm
from pytest_llmperf.config.settings import Settings
from pytest_llmperf.engines.accuracy.lm_eval import check_fits, read_task
from pytest_llmperf.errors import EnvironmentMissing, SpecError

TASK = """
task: sums
dataset_path: json
dataset_kwargs: {data_files: {test: sums.jsonl}}
output_type: OUTPUT
doc_to_text: !function code.text
metric_list: [{metric: exact_match}]
"""


@pytest.fixture
def read(tmp_path):
    """Read a task file with this text, or the name that is given."""

    def read(text=TASK, output="generate_until", given="tasks/sums.yaml"):
        folder = tmp_path / "tasks"
        folder.mkdir()
        (folder / "sums.jsonl").write_text('{"question": "1+1=", "answer": "2"}\n')
        (folder / "none.jsonl").touch()
        (folder / "sums.yaml").write_text(text.replace("OUTPUT", output))
        return read_task(given, Settings(engines={"lm_eval": sys.executable}), tmp_path)

    return read


@pytest.mark.parametrize(("output", "by_probability"), [("generate_until", False), ("multiple_choice", True)])
def test_task_file_is_read_with_name_and_output_type(read, tmp_path, output, by_probability):
    task = read(output=output)
    assert (task.name, task.source, task.by_probability) == ("sums", str(tmp_path / "tasks/sums.yaml"), by_probability)


@pytest.mark.parametrize("change", [{"given": "gsm8k"}, {"text": "task: sums\ndataset_path: openai/gsm8k\n"}])
def test_data_set_of_the_hub_needs_the_harness_before_a_server_starts(read, change):
    with pytest.raises(SpecError, match=r"ModuleNotFoundError: No module named 'lm_eval'\. Nothing was started"):
        read(**change)


@pytest.mark.parametrize(("change", "complaint"), [
    ({"given": "tasks/other.yaml"}, r"there is no task file tasks/other\.yaml .*Nothing was started"),
    ({"given": 3}, "write the path of a task file"),
    ({"text": "task: [1"}, "cannot be read as a task of lm-evaluation-harness: no YAML"),
    ({"text": "- a\n- b\n"}, "no mapping of names to values"),
    ({"text": "output_type: generate_until\n"}, "has no name"),
    ({"text": TASK.replace("sums.jsonl", "gone.jsonl")}, r"names data that are missing or empty: gone\.jsonl"),
    ({"output": "loglikelihood_rolling"}, "whose answers are not right or wrong"),
])
def test_unusable_task_is_refused_with_reason(read, change, complaint):
    with pytest.raises(SpecError, match=complaint):
        read(**change)


@pytest.mark.parametrize(("protocol", "complaint"), [
    ("chat", r"chat endpoint .* gives none\. Nothing was sent"),
    ("completions", "need the model's tokenizer"),
    ("responses", "asks over the completions or the chat route"),
])
def test_task_that_needs_log_probabilities_is_refused_for_endpoint(read, protocol, complaint):
    task = read(output="multiple_choice")
    with pytest.raises(SpecError, match=complaint):
        check_fits(task, endpoint("http://127.0.0.1:1", model="m", protocol=protocol))
    check_fits(task, vllm("tiny"))


def test_missing_harness_is_named_with_install_command(tmp_path):
    (tmp_path / "sums.yaml").write_text(TASK)
    with pytest.raises(EnvironmentMissing, match=r"pip install 'lm_eval\[api\]' transformers"):
        read_task("sums.yaml", Settings(), tmp_path)


def test_packages_of_a_bundle_folder_are_imported_first(tmp_path):
    (tmp_path / "sums.yaml").write_text(TASK)
    bundle = tmp_path / "bundle"
    for package, code in {"lm_eval": "", "yaml": "raise ImportError('yaml of the bundle')"}.items():
        (bundle / package).mkdir(parents=True)
        (bundle / package / "__init__.py").write_text(code)
    with pytest.raises(SpecError, match=r"cannot be read .*: ImportError: yaml of the bundle"):
        read_task("sums.yaml", Settings(engines={"lm_eval": str(bundle)}), tmp_path)


def test_interpreter_that_hangs_is_given_up(tmp_path):
    (tmp_path / "sums.yaml").write_text(TASK)
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\nexec sleep 60\n")
    python.chmod(0o755)
    with pytest.raises(EnvironmentMissing, match=r"did not read sums\.yaml within 0\.2 s\. Nothing was started"):
        read_task("sums.yaml", Settings(engines={"lm_eval": str(python)}), tmp_path, timeout_s=0.2)


def test_task_without_questions_is_refused(read, tmp_path):
    with pytest.raises(SpecError, match=r"names data that are missing or empty: none\.jsonl"):
        read(text=TASK.replace("sums.jsonl", "none.jsonl"))


def test_shipped_task_file_is_read():
    root = Path(__file__).parents[4]
    task = read_task("suites/tasks/sums.yaml", Settings(engines={"lm_eval": sys.executable}), root)
    assert (task.name, task.by_probability) == ("sums", False)
