"""Runs in the interpreter that has lm-evaluation-harness, as a script of its own: it imports nothing of this package.

`lm_eval_script.py describe TASK` prints facts of a task as JSON.

`lm_eval_script.py answer TASK SERVER.json OUT.json` asks a server and writes which answers are right.

A first argument --packages=FOLDER adds the packages of this folder, where the interpreter does not have the harness.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

#: Metrics of lm-evaluation-harness that say of one answer whether it is right.
BINARY = ("exact_match", "acc", "acc_norm")
PACKAGES = "--packages="


def describe(task: str) -> dict[str, Any]:
    """What a task says, as far as it can be checked without a server. Loads a data set that is no local file.

    Args:
        task: path of a task file, or the name of a task that lm-evaluation-harness brings along.
    """
    if not _is_file(task):
        return _loaded(task)
    path = Path(task)
    config = _config(path)
    files = (config.get("dataset_kwargs") or {}).get("data_files") or {}
    listed = files.values() if isinstance(files, dict) else files if isinstance(files, list) else [files]
    named = [name for entry in listed for name in (entry if isinstance(entry, list) else [entry])]
    if config.get("task") and not named:
        os.chdir(path.parent)  # a folder of data is named relative to the task
        return _loaded(config)
    return {
        "task": config.get("task"),
        "output_type": config.get("output_type", "generate_until"),
        "metrics": [entry.get("metric") for entry in config.get("metric_list") or [] if isinstance(entry, dict)],
        "missing_files": [name for name in named if _is_missing(path.parent, str(name))],
        "is_local": True,
        "missing_data": "",
    }


def _is_file(task: str) -> bool:
    return Path(task).suffix in (".yaml", ".yml")


def _loaded(task: str | dict[str, Any]) -> dict[str, Any]:
    """The facts of a task whose data set the harness loads from the Hub, from its cache or from a folder."""
    from lm_eval.tasks import TaskManager

    name = task if isinstance(task, str) else task["task"]
    manager = TaskManager()
    if isinstance(task, str) and task not in manager.all_subtasks:
        raise SystemExit(f"lm-evaluation-harness has no task {task}")
    facts: dict[str, Any] = {"task": name, "output_type": "generate_until", "metrics": [], "missing_files": [],
                             "is_local": False, "missing_data": ""}
    try:
        with contextlib.redirect_stdout(sys.stderr):
            (loaded,) = manager.load(task)["tasks"].values()
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]
        return facts | {"missing_data": f"{type(error).__name__}: {reason}".rstrip(".")}
    metrics = [entry.get("metric") for entry in loaded.config.metric_list or []]
    return facts | {"output_type": loaded.config.output_type, "metrics": metrics}


def _is_missing(folder: Path, name: str) -> bool:
    """Whether a data file is not there or has no question in it. The harness loads names with a scheme itself."""
    return "://" not in name and not ((folder / name).is_file() and (folder / name).stat().st_size)


def answer(task: str, server: dict[str, Any]) -> dict[str, Any]:
    """Ask a server the questions of a task: its metric, and per question whether the answer is right.

    Args:
        task: path of a task file, or a task that lm-evaluation-harness brings along.
        server: url, model, tokenizer, headers, chat, concurrency, and the answers' settings.
    """
    from lm_eval.evaluator import simple_evaluate

    place = Path(task)
    tasks: list[Any] = [task]
    if _is_file(task):
        os.chdir(place.parent)  # data files are named relative to the task
        tasks = [_config(place)]
    arguments = {
        "model": server["model"], "base_url": server["url"], "num_concurrent": server["concurrency"],
        "header": server["headers"], "max_retries": 1, "timeout": server["timeout_s"],
        "verify_certificate": server["tls_verify"], "ca_cert_path": server["tls_ca_file"],
    }  # fmt: skip
    if server["tokenizer"] is None:
        arguments |= {"tokenizer_backend": "None", "tokenized_requests": False, "eos_string": "</s>"}
    else:
        arguments |= {"tokenizer_backend": "huggingface", "tokenizer": server["tokenizer"]}
    name = "local-chat-completions" if server["chat"] else "local-completions"
    evaluated = simple_evaluate(name, arguments, tasks, bootstrap_iters=0, apply_chat_template=server["chat"])
    (every,) = (evaluated or {})["samples"].values()
    samples = [sample for sample in every if sample["filter"] == every[0]["filter"]]  # of GSM8K: strict-match
    if not samples:
        raise SystemExit("the task has no question")
    metric = next((name for name in BINARY if name in samples[0]), None)
    if metric is None:
        raise SystemExit(f"the task has none of the metrics {', '.join(BINARY)}")
    return {"metric": metric, "right": {_identity(sample): bool(sample[metric]) for sample in samples}}


def _identity(sample: dict[str, Any]) -> str:
    return f"{sample['doc_id']}:{sample['doc_hash'][:16]}"


def _config(path: Path) -> dict[str, Any]:
    """The YAML file as a dict; its `!function` values stay out."""
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """Reads unknown tags as None."""

    Loader.add_multi_constructor("!", lambda _loader, _suffix, _node: None)
    try:
        config = yaml.load(path.read_text(encoding="utf-8"), Loader)
    except yaml.YAMLError as error:
        raise SystemExit(f"no YAML: {str(error).splitlines()[0]}") from error
    if not isinstance(config, dict):
        raise SystemExit("no mapping of names to values")
    return config


def main(arguments: list[str]) -> None:
    if arguments[:1] and arguments[0].startswith(PACKAGES):
        sys.path.insert(0, arguments.pop(0).removeprefix(PACKAGES))
    match arguments:
        case ["describe", path]:
            print(json.dumps(describe(path)))  # noqa: T201 - the answer
        case ["answer", task, server_file, out]:
            server = json.loads(Path(server_file).read_text(encoding="utf-8"))
            server["headers"] |= json.loads(os.environ.pop("LLMPERF_SECRET_HEADERS", "{}"))
            written = Path(out).absolute()
            result = json.dumps(answer(task, server))
            written.write_text(result, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
