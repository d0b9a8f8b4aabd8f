"""Parses the target of a command line: an engine with its flags, a workload, and the hardware."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_llmperf.cli.output import remark
from pytest_llmperf.config.emulation import GPUS, Emulation, existing_coefficients
from pytest_llmperf.config.root import project_root
from pytest_llmperf.config.settings import read_settings, with_engine_options
from pytest_llmperf.doctor.findings import environment_at, this_place
from pytest_llmperf.engines.adapters import startable
from pytest_llmperf.engines.endpoint.spec import endpoint
from pytest_llmperf.engines.spec import build_spec
from pytest_llmperf.errors import SpecError, UsageError, did_you_mean
from pytest_llmperf.kinds import GPU_KINDS
from pytest_llmperf.model.api import DIALECTS, PROTOCOLS
from pytest_llmperf.model.engine import EngineSpec, Flag
from pytest_llmperf.report.live import LiveWatch
from pytest_llmperf.report.watch import LineWatch, Watch
from pytest_llmperf.session.executions import Execution, begin_execution
from pytest_llmperf.session.perf_session import PerfSession
from pytest_llmperf.session.provenance import add_host, host_digest
from pytest_llmperf.session.resumption import folder_to_resume, resumed_tests
from pytest_llmperf.telemetry.hardware import detect, emulated_hardware
from pytest_llmperf.workload import Workload, poisson, random_tokens, recorded, sharegpt, trace
from pytest_llmperf.workload.arguments import Length
from pytest_llmperf.workload.expression import read_workload

#: A URL ends at the first colon behind its host and port. A model such as llama3:8b may contain colons.
RUNNING = re.compile(r"(?P<url>https?://(?:[^/?]*@)?(?:\[[^\]]*\]|[^/?:]*)(?::\d+(?=[/?:]))?+(?:[/?][^:]*)?):(?P<model>.+)")
DEPLOYMENT = "replicas"
STARTED = "vllm:llama-3.1-8b, sglang:…"
STARTED_OR_RUNNING = f"{STARTED}, or http://HOST:PORT:MODEL of a server that already runs"


Options = Mapping[str, Mapping[str, Any]]
ENGINE_OPTIONS: Options = {
    "--flag": {"action": "append", "default": [], "metavar": "NAME=VALUE", "help": "of the engine; repeatable"},
    "--model-alias": {"action": "append", "default": [], "metavar": "NAME",
                      "help": "a further name by which answers may call the model; repeatable"},
    "--api-key-env": {"metavar": "VARIABLE", "help": "environment variable with the API key of a running server"},
    "--metrics": {"action": "append", "metavar": "ADDRESS",
                  "help": "metrics page of a replica of a running server, dns://NAME:PORT, or prometheus+http://…; "
                  "repeatable"},
    "--kind": {"metavar": "KIND", "help": "hardware kind of a running server: h200, l40s, ... or cpu"},
    "--protocol": {"choices": PROTOCOLS, "default": "completions",
                   "help": "of a running server (default: completions)"},
    "--dialect": {"choices": DIALECTS, "default": "vllm",
                  "help": "fields of the requests to a running server (default: vllm)"},
    "--tokenizer": {"default": "", "metavar": "NAME",
                    "help": "tokenizer that counts the text of a running server: tokenizer.json, a folder, or a name "
                    "in the local Hugging Face cache"},
}
LOAD_OPTIONS: Options = {
    "--workload": {"metavar": "CALL", "help": "send this workload of a suite instead, e.g. "
                   '"multi_turn(conversations=60, turns=5, arrivals=poisson(1), …)"; a search begins at its rate'},
    "--trace": {"metavar": "FILE", "help": "send recorded requests instead: Mooncake, BurstGPT, Azure, OpenTelemetry "
                "spans, a requests file of a run folder, or ShareGPT"},
    "--trace-window": {"metavar": "FROM:TO", "help": "seconds of the trace to use (default: all)"},
    "--most-tokens": {"type": int, "metavar": "N", "help": "leave out longer requests of a trace"},
    "--input": {"default": "400:1200", "metavar": "N|LOW:HIGH", "help": "tokens of a prompt (default: 400:1200)"},
    "--output": {"default": "128", "metavar": "N|LOW:HIGH", "help": "tokens of an answer (default: 128)"},
    "--requests": {"type": int, "default": 300, "help": "of each run (default: 300)"},
    "--rate": {"type": float, "default": 4.0, "help": "requests/s; a search begins there (default: 4)"},
    "--seed": {"type": int, "default": 0, "help": "of prompts and arrivals (default: 0)"},
}
PLACE_OPTIONS: Options = {
    "--emulate": {"metavar": "KIND", "help": "the built-in emulator of a hardware kind: h200, l40s, ..."},
    "--emulate-seed": {"type": int, "default": 0, "metavar": "N", "help": "of its noise (default: 0)"},
    "--llmperf-engine": {"action": "append", "default": [], "metavar": "NAME=PLACE",
                         "help": "where an engine is installed, as pytest's option; repeatable"},
}
#: Of the commands that search rates and settings; each command takes some of them.
SEARCH_OPTIONS: Options = {
    "--slo": {"action": "append", "required": True, "help": 'e.g. "ttft_p99 <= 500ms"; repeatable, all hold'},
    "--metric": {"action": "append", "default": [], "help": "measure it at --rate, for the Pareto front; repeatable"},
    "--runs": {"type": int, "default": 3, "help": "of each setting for --metric (default: 3)"},
    "--precision": {"type": float, "default": 0.04, "help": "of each search, as a share of the rate (default: 0.04)"},
    "--resume": {"metavar": "RUN", "help": "go on in the run folder of an earlier command with the same options: its "
                 "judged rates are kept (a path, an id, a part of it, or newest)"},
}


def arguments(engine: str, *search_options: str) -> dict[str, Mapping[str, Any]]:
    """The arguments that `spec_of`, `workload_of` and `measuring` read; `engine` is the help of the first."""
    groups = {"workload: random prompts, a trace, or a workload of a suite": LOAD_OPTIONS, "place": PLACE_OPTIONS}
    return {
        "engine": {"metavar": "ENGINE:MODEL", "help": engine},
        **ENGINE_OPTIONS,
        **{name: {**row, "group": title} for title, options in groups.items() for name, row in options.items()},
        **{name: SEARCH_OPTIONS[name] for name in search_options},
    }


def spec_of(arguments: argparse.Namespace) -> EngineSpec:
    """The engine.

    Raises:
        SpecError: the spec is invalid.
    """
    text, flags = str(arguments.engine), dict(map(flag, arguments.flag))
    if text.startswith("http"):
        running = RUNNING.fullmatch(text)
        if flags or running is None or running["model"].isdigit():
            raise SpecError(f"{text!r}: write a running server as http://HOST:PORT:MODEL; it takes no --flag.")
        return endpoint(running["url"], model=running["model"], model_alias=arguments.model_alias,
                        api_key_env=arguments.api_key_env, metrics=arguments.metrics, kind=arguments.kind,
                        protocol=arguments.protocol, dialect=arguments.dialect, tokenizer=arguments.tokenizer)
    if text.startswith(DEPLOYMENT):
        raise SpecError(f"{text!r}: the commands sweep, tune and capacity start one server, and know no deployment "
                        "yet. Write a suite that searches the highest rate: "
                        "perf.max_rate(replicas(vllm(MODEL), 2, router=vllm_router()), …).")
    name, _, model = text.partition(":")
    if name not in startable() or not model:
        near = did_you_mean(name, startable(), "{}")
        meant = f" Did you mean {near}:{model or 'MODEL'}?" if near else ""
        raise SpecError(f"{text!r}: write the engine as {' or '.join(f'{engine}:MODEL' for engine in startable())}."
                        f"{meant}")
    return build_spec(name, model, {}, flags, arguments.model_alias)


def flag(text: str) -> tuple[str, Flag]:
    """"max_num_seqs=64" as name and value; what is JSON is read as JSON, everything else is text.

    Raises:
        UsageError: the text has another form.
    """
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise UsageError(f"{text!r}: write a flag as NAME=VALUE, e.g. max_num_seqs=64.")
    return name.strip().lstrip("-").replace("-", "_"), flag_value(value)


def flag_value(text: str) -> Flag:
    """A number, a boolean, a list or dict as in JSON; else the text itself."""
    try:
        value: Flag = json.loads(text)
    except ValueError:
        return text
    return value


def workload_of(arguments: argparse.Namespace) -> Workload:
    """The workload.

    Raises:
        SpecError: a number is invalid.
    """
    if arguments.workload is not None:
        if arguments.trace is not None:
            raise UsageError("--workload and --trace are two workloads. Name one of them.")
        return read_workload(arguments.workload)
    if arguments.trace is not None:
        return _recorded_workload(arguments)
    return random_tokens(
        input=_length("--input", arguments.input), output=_length("--output", arguments.output),
        arrivals=poisson(arguments.rate), requests=arguments.requests, seed=arguments.seed,
    )


def _recorded_workload(arguments: argparse.Namespace) -> Workload:
    """The workload of --trace, whose recorded times are scaled to --rate. ShareGPT has no times."""
    path = Path(arguments.trace).expanduser()
    if path.suffix == ".json":
        if arguments.trace_window is not None or arguments.most_tokens is not None:
            raise UsageError(f"--trace {path}: ShareGPT has no times, and --trace-window and --most-tokens do not "
                             "apply to it. Drop these options.")
        return sharegpt(path=path, arrivals=poisson(arguments.rate), requests=arguments.requests, seed=arguments.seed)
    begin_s, end_s = _window(arguments.trace_window or "0:")
    return trace(path=path, arrivals=recorded(rate=arguments.rate), requests=arguments.requests, begin_s=begin_s,
                 end_s=end_s, most_tokens=arguments.most_tokens, seed=arguments.seed)


def _window(text: str) -> tuple[float, float | None]:
    """"60:120" in seconds; "60:" has no end.

    Raises:
        UsageError: the text has another form.
    """
    begin, colon, end = text.partition(":")
    try:
        if colon:
            return float(begin or 0), float(end) if end else None
    except ValueError:
        pass
    raise UsageError(f"--trace-window {text}: write FROM:TO in seconds.")


def _length(option: str, text: str) -> Length:
    try:
        numbers = [int(part) for part in text.split(":")]
    except ValueError as error:
        raise UsageError(f"{option} {text}: write a number of tokens, or LOW:HIGH.") from error
    if len(numbers) > 2:
        raise UsageError(f"{option} {text}: write a number of tokens, or LOW:HIGH.")
    return (numbers[0], numbers[1]) if len(numbers) == 2 else numbers[0]


@dataclass(frozen=True, slots=True)
class EnginePlace:
    """Engine build, hardware and host: with flags and workload they determine the numbers of a started engine.

    Args:
        engine: name, version and installation of the engine; "" on the emulator.
        hardware: the GPUs, or the emulated kind with its noise seed.
        host: digest of the host; "" on the emulator.
    """

    engine: str
    hardware: str
    host: str = ""

    @property
    def without_host(self) -> str:
        """Engine and hardware as text: a tuning goes on with these on another host."""
        return ", ".join(filter(None, (self.engine, self.hardware)))

    def __str__(self) -> str:
        return f"{self.without_host}, host {self.host}" if self.host else self.without_host


def place_of(arguments: argparse.Namespace, spec: EngineSpec) -> EnginePlace:
    """The place where the command measures a started engine.

    Raises:
        EnvironmentMissing: the engine is not installed.
    """
    if arguments.emulate is not None:
        return EnginePlace("", f"emulated {arguments.emulate}, seed {arguments.emulate_seed}")
    root, hardware = project_root(), detect()
    here = this_place(root, with_engine_options(read_settings(root), arguments.llmperf_engine), hardware)
    environment = environment_at(here, spec.engine)
    version = here.version_in(environment, spec.engine) or "of unknown version"
    return EnginePlace(f"{spec.engine} {version} at {environment.origin}", str(hardware), host_digest(hardware))


@contextmanager
def measuring(arguments: argparse.Namespace, name: str, resume: str | None = None) -> Iterator[Execution]:
    """The execution that measures, here or on the emulator. At the end it stops all servers and writes the run folder.

    Args:
        arguments: of the command.
        name: of the command, which stands for a test's id in the run folder.
        resume: run folder to go on in, or "newest"; None writes a new one.

    Raises:
        ConfigError: the project's settings are wrong, or there is no such kind to emulate.
        UsageError: the run folder cannot be resumed.
    """
    kind = arguments.emulate
    if kind is not None and kind not in GPU_KINDS:
        raise UsageError(f"--emulate {kind}: there is no emulator of that; there is one of {', '.join(GPU_KINDS)}.")
    hardware = detect() if kind is None else emulated_hardware(kind, GPUS)
    root, watch = project_root(), _watch()
    settings = with_engine_options(read_settings(root), arguments.llmperf_engine)
    emulation = None if kind is None else Emulation(
        kind, seed=arguments.emulate_seed, coefficients=existing_coefficients(root / settings.baselines_dir, kind))
    folder = None if resume is None else folder_to_resume(resume, root / settings.runs_dir, Path.cwd())
    session = PerfSession(settings, root, hardware, watch.notify, emulation=emulation,
                          session_id=None if folder is None else folder.name)
    if folder is not None:
        tests = resumed_tests(folder, root, [settings.baselines_dir], hardware, session.host)
        session.resume(tests, [test.test for test in tests])
        add_host(folder, session.host)
    with ExitStack() as steps:  # in the end all of them, from the last to the first, though one of them fails
        steps.callback(session.close)
        execution = begin_execution(session, name, hardware.kind)
        steps.callback(execution.close)
        steps.callback(watch.close)
        yield execution
        execution.end(None, complete=True)


def _watch() -> Watch:
    """A progress display on stderr, because stdout is reserved for the result of the command."""
    def line(text: str) -> None:
        remark(text)

    if not sys.stderr.isatty():
        return LineWatch(line)
    return LiveWatch(sys.stderr, line)
