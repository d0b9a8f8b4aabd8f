"""Asks a running server the questions of a task, by lm-evaluation-harness in an environment of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from pytest_llmperf.config.settings import Settings, expanded
from pytest_llmperf.engines.adapters import HARNESS, reader_of
from pytest_llmperf.engines.process.environment import Environment, Installations
from pytest_llmperf.engines.server import Server
from pytest_llmperf.errors import EngineError, EnvironmentMissing, SpecError, refuse
from pytest_llmperf.model.engine import EngineSpec
from pytest_llmperf.process.launch import Launch
from pytest_llmperf.process.supervisor import Supervised
from pytest_llmperf.results.accuracy import Accuracy

SCRIPT = Path(__file__).with_name("lm_eval_script.py")
ISOLATED = "-I"  # of Python: else the modules beside the script would hide the harness's own
LOG = "lm_eval.log"
OUT = "answers.json"
CONCURRENCY = 16
POLL_S = 0.2
DESCRIBE_TIMEOUT_S = 300.0  # a data set may have to be downloaded
#: Output types of tasks, and whether they compare the probabilities of given answers.
OUTPUT_TYPES = {"generate_until": False, "multiple_choice": True, "loglikelihood": True}


@dataclass(frozen=True, slots=True)
class Task:
    """A task whose file was checked.

    Args:
        name: for results.
        source: path of the task file, or the name of a task that lm-evaluation-harness brings along.
        by_probability: whether answers are chosen by their log-probabilities.
        is_local: whether the questions are files beside the task file.
        environment: of the harness.
    """

    name: str
    source: str
    by_probability: bool
    is_local: bool
    environment: Environment


def read_task(given: object, settings: Settings, root: Path, timeout_s: float = DESCRIBE_TIMEOUT_S) -> Task:
    """Check a task, and load a data set that is no local file, before a server starts.

    Args:
        given: path of a task file, relative to `root`, or the name of a task of the harness.
        timeout_s: for the harness's interpreter, which reads the file and loads the data set.

    Raises:
        SpecError: the file is missing, is no task, or its data are missing, empty or cannot be loaded.
        EnvironmentMissing: lm-evaluation-harness is not installed, or its interpreter does not answer in time.
    """
    if not isinstance(given, str) or not given:
        raise SpecError(f"accuracy: write the path of a task file, such as \"suites/tasks/sums.yaml\", got {given!r}.")
    path = (root / expanded(given)).absolute()
    is_file = path.suffix in (".yaml", ".yml") or "/" in given
    if is_file and not path.is_file():
        raise SpecError(f"accuracy: there is no task file {given} (looked at {path}). Nothing was started. Write the "
                        "path relative to the project's folder.")
    environment = Installations(settings.engines, root, "cpu").find_environment(HARNESS)
    source = str(path) if is_file else given
    facts = _described(source, given, environment, timeout_s)
    by_probability = OUTPUT_TYPES[str(facts["output_type"])]
    return Task(str(facts["task"]), source, by_probability, bool(facts["is_local"]), environment)


def check_fits(task: Task, spec: EngineSpec) -> None:
    """Refuse a task that this engine cannot answer, as far as its spec says so.

    Raises:
        SpecError: the harness has no route to this endpoint, or the endpoint lacks log-probabilities.
    """
    protocol = reader_of(spec).interface.protocol
    refuse(
        (protocol == "responses",
         f"accuracy: the harness asks over the completions or the chat route, and {spec} is measured "
         'over the responses route. Nothing was sent. Name the endpoint with protocol="chat".'),
        (task.by_probability and protocol == "chat",
         f"accuracy: the task {task.name} chooses answers by log-probabilities of the prompt, and the "
         f"chat endpoint {spec} gives none. Nothing was sent. Use a task with output_type: "
         'generate_until, or protocol="completions".'),
        (spec.is_endpoint and task.by_probability,
         f"accuracy: the task {task.name} chooses answers by log-probabilities, which need the model's "
         f"tokenizer, and the files of {spec} are not at hand. Nothing was sent. Use a task with "
         "output_type: generate_until."),
    )


def ask(task: Task, server: Server, folder: Path, settings: Settings) -> Accuracy:
    """Ask the server all questions of the task. The harness runs supervised: it ends with this process.

    Args:
        folder: for the log, the command and the answers.

    Raises:
        EngineError: the harness failed, or took longer than `measure_timeout_s`.
        ServerDied: the server ended meanwhile.
    """
    folder.mkdir(parents=True, exist_ok=True)
    described, out, cache = folder / "server.json", folder / OUT, folder / "cache"
    described.write_text(json.dumps(_server_facts(task, server, settings), indent=1), encoding="utf-8")
    command = _command(task.environment, "answer", task.source, str(described), str(out))
    own = {"LLMPERF_SECRET_HEADERS": json.dumps(dict(server.contact.headers)), "TOKENIZERS_PARALLELISM": "false",
           "HF_HUB_DISABLE_TELEMETRY": "1", "TQDM_DISABLE": "1"}
    if task.is_local:  # a data set of the Hub is in the user's cache
        own["HF_DATASETS_CACHE"] = str(cache)
    launch = Launch(command, {**os.environ, **own}, folder, folder, log_name=LOG, hidden=server.contact.secrets)
    process = Supervised.start(launch, server.clock)
    try:
        ending = _wait(process, server, settings.measure_timeout_s)
    finally:
        process.stop(0.0)
        shutil.rmtree(cache, ignore_errors=True)
    if ending != "exit code 0" or not out.is_file():
        raise EngineError(f"The questions of {task.name} could not be asked: lm_eval ended with {ending}. Read its "
                          f"log: {launch.log_path}.", process.evidence(40))
    answers = json.loads(out.read_text(encoding="utf-8"))
    return Accuracy(task.name, str(server.spec), answers["metric"], answers["right"])


def _command(environment: Environment, *arguments: str) -> tuple[str, ...]:
    """The command of the script. An isolated interpreter ignores PYTHONPATH, so the script adds a bundle's folder."""
    folder = () if environment.pythonpath is None else (f"--packages={environment.pythonpath}",)
    return (*environment.prefix, ISOLATED, str(SCRIPT), *folder, *arguments)


def _wait(process: Supervised, server: Server, timeout_s: float) -> str:
    began_ns = server.clock.now_ns()
    while (ending := process.wait_exit(POLL_S)) is None:
        server.unit.check_alive()
        if (server.clock.now_ns() - began_ns) / 1e9 > timeout_s:
            raise EngineError(f"lm_eval did not end within {timeout_s:g} s and was given up. Ask fewer questions, or "
                              "raise measure_timeout_s.", process.evidence(40))
    return ending


def _server_facts(task: Task, server: Server, settings: Settings) -> dict[str, object]:
    chat = server.api.protocol == "chat"
    tokenizer = server.model.path_or_hub_id if task.by_probability and server.model is not None else None
    return {
        "url": server.contact.service.url(f"/v1/{'chat/' if chat else ''}completions"),
        "model": server.contact.served_name, "tokenizer": tokenizer, "chat": chat, "headers": {},
        "concurrency": CONCURRENCY, "timeout_s": round(settings.request_timeout_s),
        "tls_verify": server.contact.channel.tls_verify, "tls_ca_file": server.contact.channel.tls_ca_file,
    }  # fmt: skip


def _described(source: str, given: str, environment: Environment, timeout_s: float) -> dict[str, object]:
    """The facts of a task, or the sentence that says why it cannot be used."""
    command = _command(environment, "describe", source)
    try:
        completed = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                                   timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        raise EnvironmentMissing(f"accuracy: {environment.prefix[0]} did not read {given} within {timeout_s:g} "
                                 "s. Nothing was started. Run this interpreter by hand, or make the environment of "
                                 "lm-evaluation-harness anew.") from error
    if completed.returncode:
        reason = (completed.stderr.strip() or "no output").splitlines()[-1]
        raise SpecError(f"accuracy: {given} cannot be read as a task of lm-evaluation-harness: {reason}. Nothing was "
                        "started. Correct the file.")
    facts = json.loads(completed.stdout)
    problem_and_remedy = _problem_and_remedy(facts)
    if problem_and_remedy:
        raise SpecError(f"accuracy: {given} {problem_and_remedy} Nothing was started.")
    return dict(facts)


def _problem_and_remedy(facts: dict[str, object]) -> str:
    """Why a task file cannot be used and what to do; "" for a usable file."""
    missing = facts["missing_files"]
    if facts["missing_data"]:
        return (f"needs a data set that cannot be loaded: {facts['missing_data']}. Load it once where the Hub can be "
                "reached, or write a task file with dataset_path: json and data_files.")
    if not facts["task"]:
        return "has no name. Add the line `task: NAME`."
    if isinstance(missing, list) and missing:
        return (f"names data that are missing or empty: {', '.join(map(str, missing))}. Correct the "
                "paths, which count from the folder of the task file.")
    if facts["output_type"] not in OUTPUT_TYPES:
        return (f"has output_type {facts['output_type']!r}, whose answers are not right or wrong. Use "
                f"{', '.join(OUTPUT_TYPES)}.")
    return ""
