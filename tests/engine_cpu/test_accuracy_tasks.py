"""Tasks of GSM8K's form with the real harness: from local files, and from a data set that cannot be reached."""

import json
import os
import random
import subprocess
from pathlib import Path

import pytest

from pytest_llmperf.config.settings import Settings
from pytest_llmperf.engines.accuracy.lm_eval import read_task
from pytest_llmperf.errors import SpecError

ROOT = Path(__file__).parents[2]
HARNESS = Path(os.environ.get("LLMPERF_LM_EVAL", ROOT / ".engines" / "lm_eval"))
pytestmark = [
    pytest.mark.real_engine,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not HARNESS.is_dir(), reason="needs lm-evaluation-harness (make lm-eval)"),
]
QUESTIONS = 50

TASK = r"""
task: gsm8k_form
dataset_path: json
dataset_kwargs: {data_files: {train: questions.jsonl, test: questions.jsonl}}
fewshot_split: train
test_split: test
output_type: generate_until
num_fewshot: 2
doc_to_text: "Question: {{question}}\nAnswer:"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["Question:"], max_gen_toks: 16, do_sample: false}
metric_list:
  - {metric: exact_match, regexes_to_ignore: [",", "(?s).*#### "]}
filter_list:
  - name: strict-match
    filter: [{function: regex, regex_pattern: "#### (\\-?[0-9\\.\\,]+)"}, {function: take_first}]
  - name: flexible-extract
    filter:
      - {function: regex, group_select: -1, regex_pattern: "(-?[$0-9.,]{2,})|(-?[0-9]+)"}
      - {function: take_first}
"""

SUITE = """
import pytest
from pytest_llmperf import vllm

@pytest.mark.cpu
def test_questions(perf):
    answers = perf.accuracy(vllm("tiny", max_model_len=2048), "tasks/gsm8k_form.yaml")
    assert (len(answers.right), answers.metric) == (QUESTIONS, "exact_match")
    assert answers.share == 0
""".replace("QUESTIONS", str(QUESTIONS))

#: Lays out a data set as the cache of `datasets` has it after a download.
CACHE = """
import sys
from pathlib import Path
from datasets import DatasetInfo, Features, Value
from datasets.arrow_writer import ArrowWriter
from datasets.splits import SplitDict, SplitInfo

folder = Path(sys.argv[1], "datasets", "openai___gsm8k", "main", "0.0.0", "0" * 40)
folder.mkdir(parents=True)
features = Features(question=Value("string"), answer=Value("string"))
splits = SplitDict(dataset_name="gsm8k")
for split in ("train", "test"):
    writer = ArrowWriter(path=str(folder / f"gsm8k-{split}.arrow"), features=features)
    for number in range(5):
        writer.write({"question": f"How much is {number}+1?", "answer": f"#### {number + 1}"})
    examples, size = writer.finalize()
    splits.add(SplitInfo(split, num_bytes=size, num_examples=examples, dataset_name="gsm8k"))
DatasetInfo(features=features, builder_name="parquet", dataset_name="gsm8k", config_name="main", version="0.0.0",
            splits=splits).write_to_directory(str(folder))
"""


def write_task(folder):
    """A task file of GSM8K's form with written questions."""
    folder.mkdir()
    (folder / "gsm8k_form.yaml").write_text(TASK)
    chance = random.Random(1)
    with (folder / "questions.jsonl").open("w") as file:
        for _ in range(QUESTIONS):
            boxes, pens, broken = chance.randint(11, 40), chance.randint(2, 9), chance.randint(1, 20)
            answer = f"The boxes hold {boxes * pens} pens.\n#### {boxes * pens - broken}"
            question = f"A shop has {boxes} boxes with {pens} pens each. {broken} pens break. How many pens are whole?"
            print(json.dumps({"question": question, "answer": answer}), file=file)


def test_random_weights_fail_all_questions_of_gsm8k_form(run_real, pytester):
    write_task(pytester.path / "tasks")
    _result, tags = run_real(SUITE, "--llmperf-engine", f"lm_eval={HARNESS}")
    assert tags == {"test_questions": set()}


def test_unreachable_data_set_is_refused_before_a_server_starts(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    settings = Settings(engines={"lm_eval": str(HARNESS)})
    with pytest.raises(SpecError, match=r"gsm8k needs a data set that cannot be loaded: .*openai/gsm8k"):
        read_task("gsm8k", settings, tmp_path)
    with pytest.raises(SpecError, match="lm-evaluation-harness has no task gsm8kk"):
        read_task("gsm8kk", settings, tmp_path)


def test_cached_data_set_is_loaded_without_the_hub(monkeypatch, tmp_path):
    subprocess.run([HARNESS / "bin" / "python", "-c", CACHE, tmp_path], check=True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    task = read_task("gsm8k", Settings(engines={"lm_eval": str(HARNESS)}), tmp_path)
    assert (task.source, task.is_local, task.by_probability) == ("gsm8k", False, False)
