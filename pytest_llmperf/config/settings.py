"""Settings: defaults, then `[tool.llmperf]` of pyproject.toml or `llmperf.toml`, then the command line."""

from __future__ import annotations

import os
import re
import shlex
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from pytest_llmperf.bounded_file import read_file
from pytest_llmperf.config.gpu_price import GpuPrice, read_gpu_price
from pytest_llmperf.errors import ConfigError, did_you_mean
from pytest_llmperf.kinds import CPU, GPU_KINDS
from pytest_llmperf.kinds.rows import HardwareKind, kind_of_row, same_gpu
from pytest_llmperf.masking import mask
from pytest_llmperf.model.engine import REFERENCE

IMAGE = "image:"
DOCKER = ("docker run --rm --name {name} --gpus all --network host --ipc host --volume {root}:{root} --workdir {root} "
          "--entrypoint= {env} {image} {command}")
TABLES = ("engines", "kinds")
PLACES = ("tls_ca_file", "baselines_dir", "runs_dir", "cache_dir")
MAY_BE_EMPTY = ("engine_stop_command", "engine_processes_command")
#: Type of a setting, by its default → the values that fit, and what a value must be.
OF_TYPE: tuple[tuple[type, Callable[[Any], object], str], ...] = (
    (Mapping, lambda table: isinstance(table, Mapping) and all(isinstance(place, str) and place.strip()
                                                                       for place in table.values()),
     'must be a table of NAME = "PLACE"'),
    (tuple, lambda listed: isinstance(listed, list) and all(isinstance(text, str) for text in listed),
     "must be a list of texts"),
    (bool, lambda value: isinstance(value, bool), "must be true or false"),
    (int, lambda value: type(value) is int and value >= 1, "must be a whole number ≥ 1"),
    (float, lambda value: type(value) in (int, float) and 0 <= value < inf, "must be a number ≥ 0"),
    (str, lambda value: isinstance(value, str) and value, "must be a text"),
)
#: End of a setting's name → further rules for its value.
OF_NAME: tuple[tuple[str | tuple[str, ...], Callable[[Any], object], str], ...] = (
    ("coalesced_limit", lambda share: share <= 1, "must be a share, 0 … 1: 0.05 is 5 %"),
    # A request without time or room always fails, sampling without pause never rests.
    (("_timeout_s", "_interval_s", "response_limit_mib", "memory_limit_mib"), lambda value: value > 0,
     "must be more than 0"),
    ("connections", lambda word: word in ("keep-alive", "fresh"), "must be keep-alive or fresh"),
    ("resident_servers", lambda word: word in ("auto", "share", "sleep", "none"),
     "must be auto or share or sleep or none"),
    ("load_cpus", re.compile(r"auto|shared|\s*\d+\s*(,\s*\d+\s*)*").fullmatch,
     'must be "auto", "shared", or numbers of CPUs with commas: "6,7"'),
    ("load_hosts", lambda url: (parts := urlsplit(url)).scheme == "ray" and parts.hostname and parts.port
     and not (parts.path or parts.query), 'must be the address of a Ray client server: "ray://HOST:10001"'),
    ("engine_command", lambda words: "{image}" in words and shlex.split(words)[-1:] == ["{command}"],
     'must contain {image} and end in {command}: "docker run … {env} {image} {command}"'),
    ("proxy", lambda url: "@" not in url, "must be without credentials"),  # what stands before @ may be a password
    ("proxy", lambda url: (parts := urlsplit(url)).scheme == "http" and parts.hostname and parts.port
     and not (parts.path.strip("/") or parts.query), "must be http://HOST:PORT"),
)


@dataclass(frozen=True, slots=True)
class Settings:
    """All validated settings.

    Args:
        engines: engine name → the place of its environment: a folder, an interpreter, a command or "image:NAME".
            "engine@kind" is the place for one hardware kind, "engine:NAME" the place of a named installation.
        engine_command: how an engine runs in the container image of a place "image:NAME". Its last word is {command}.
            {image}, {root} (the project) and {name} (of the container) are replaced in each word; the word {env}
            becomes `--env VARIABLE` for each variable of the server.
        engine_stop_command: command that ends the container {name} after its client has ended; "": none.
        engine_processes_command: command that prints the process ids of the container {name} on this host, so that the
            check for other processes on a GPU leaves them out; "": none.
        ready_timeout_s: longest time from the launch of a server to its first generated token.
        stop_grace_s: time between SIGTERM and SIGKILL.
        send_delay_p99_limit_ms: largest p99 of the send delay of a valid run.
        stamp_error_p99_limit_ms: largest p99 of the error of arrival stamps of a valid run; the error is 0 if the
            kernel stamps arrivals.
        coalesced_limit: largest share of chunks that arrive together with the chunk before, in a run whose ITL is
            valid.
        load_processes: number of processes, on each load host, that share the requests of a run. One core
            cannot send and read every load.
        load_cpus: CPUs of the load processes: "auto" (separate CPUs if the machine has at least eight; started servers
            get the others), "shared", or numbers: "6,7".
        load_hosts: ray://HOST:PORT of a Ray cluster whose nodes run the load processes, for a load that one machine
            cannot send and read; "": this machine. The package ray[client] is needed.
        resident_servers: how servers that are measured in turn live: "share" (of the GPU's memory), "sleep" (all but
            the measured server), "none" (they start in sequence), or "auto": the first way for which memory suffices.
            Sides of a claim without a reference never sleep by "auto".
        connections: "keep-alive", as clients do, or "fresh": a new connection for each request.
        quote_answers: whether messages, run folders and reports may quote up to 200 bytes of a defective answer of an
            endpoint. Otherwise they state the number of bytes. Answers of servers that a session starts are quoted.
        tls_verify: whether to check the certificate of an https endpoint.
        tls_ca_file: PEM file of trusted certificates, relative to the project; "": the system's certificates.
        proxy: http://HOST:PORT of the proxy for endpoints; "": no proxy, and the proxy variables of the environment
            have no effect.
        clock_gap_limit_ms: longest pause of the load process in a valid run.
        gpu_hour_price: amount, currency and date of the price of one GPU for one hour, e.g. "2.50 USD 2026-11-01", from
            which cost_per_million_tokens follows; "": none.
        gpu_interval_s: time between two samples of the GPUs during a run.
        gpu_free_limit_mib: most memory in use on a GPU that counts as free before a server starts.
        gpu_free_timeout_s: longest wait for a free GPU.
        measure_timeout_s: longest duration of a run; a longer run is an ERROR.
        extension_limit_s: time after which an undecided claim or comparison measures no further runs; 0: the first
            three runs decide.
        first_byte_timeout_s: longest time from sending a request to the first byte of its answer's body, the first
            token.
        idle_timeout_s: longest time between two reads of an answer's body.
        request_timeout_s: longest duration of a request.
        control_timeout_s: longest duration of a control request: /metrics, /v1/models, health, an emptied cache.
        response_limit_mib: largest answer to one timed request.
        responses_memory_limit_mib: most memory of all load processes for answers that have not ended.
        profile_limit_mib: largest total size of the traces of one measurement; larger traces are dropped
            (`--llmperf-profile`).
        compare_across: conditions that may differ from a baseline's, e.g. "gpu.persistence".
        same_build: fields of the build under test that must equal a baseline's, e.g. "engine.version", "driver"; by
            default the whole build may differ.
        kinds: name → hardware kind of the project's own, from a row with the fields of `HardwareKind`.
        baselines_dir: folder of the baselines.
        runs_dir: folder of the run folders.
        runs_store: URL of a store that gets a copy of each run folder at the end of its session, such as
            "s3://BUCKET/FOLDER"; "": none. The package fsspec reaches the store, by its variables of the environment.
        runs_store_days: age in days from which run folders in the store are removed; 0: they stay.
        cache_dir: folder of built models.
    """

    engines: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    engine_command: str = DOCKER
    engine_stop_command: str = "docker rm --force {name}"
    engine_processes_command: str = "docker top {name} -eo pid"
    ready_timeout_s: float = 600.0
    stop_grace_s: float = 15.0
    send_delay_p99_limit_ms: float = 10.0
    stamp_error_p99_limit_ms: float = 5.0
    coalesced_limit: float = 0.05
    load_processes: int = 1
    load_cpus: str = "auto"
    load_hosts: str = ""
    resident_servers: str = "auto"
    connections: str = "keep-alive"
    quote_answers: bool = False
    tls_verify: bool = True
    tls_ca_file: str = ""
    proxy: str = ""
    clock_gap_limit_ms: float = 1000.0
    gpu_hour_price: str = ""
    gpu_interval_s: float = 0.2
    gpu_free_limit_mib: float = 256.0
    gpu_free_timeout_s: float = 60.0
    measure_timeout_s: float = 900.0
    extension_limit_s: float = 600.0
    first_byte_timeout_s: float = 120.0
    idle_timeout_s: float = 30.0
    request_timeout_s: float = 600.0
    control_timeout_s: float = 10.0
    response_limit_mib: float = 64.0
    responses_memory_limit_mib: float = 512.0
    profile_limit_mib: float = 64.0
    compare_across: tuple[str, ...] = ()
    same_build: tuple[str, ...] = ()
    kinds: Mapping[str, HardwareKind] = field(default_factory=lambda: MappingProxyType({}))
    baselines_dir: str = "baselines"
    runs_dir: str = ".llmperf/runs"
    runs_store: str = ""
    runs_store_days: float = 0.0
    cache_dir: str = ".llmperf/models"

    def __post_init__(self) -> None:
        """Each place "image:NAME" becomes the command of its container, wherever the place was written."""
        object.__setattr__(self, "engines", MappingProxyType({
            name: self.engine_command.replace("{image}", shlex.quote(place.removeprefix(IMAGE)))
            if place.startswith(IMAGE) else place for name, place in self.engines.items()
        }))

    @property
    def gpu_price(self) -> GpuPrice | None:
        """The price of a GPU hour; None if none is stated."""
        return read_gpu_price(self.gpu_hour_price) if self.gpu_hour_price else None


def read_settings(root: Path) -> Settings:
    """Settings of the project at `root`.

    Raises:
        ConfigError: naming every wrong key at once, with its file.
    """
    for name, table in (("llmperf.toml", ()), ("pyproject.toml", ("tool", "llmperf"))):
        path = root / name
        if path.is_file():
            values = _table(path, table)
            if values is not None:
                return settings_from(values, origin=str(path))
    return Settings()


def settings_from(values: Mapping[str, object], origin: str) -> Settings:
    """Validate a table of settings.

    Raises:
        ConfigError: naming every wrong key at once.
    """
    defaults = Settings()
    default_values = {f.name: getattr(defaults, f.name) for f in fields(Settings)}
    problems: list[str] = []
    accepted: dict[str, object] = {}
    for key, value in values.items():
        if key not in default_values:
            hint = did_you_mean(key, default_values, "Did you mean {}?") or f"Known: {', '.join(default_values)}."
            problems.append(f"{key}: unknown. {hint}")
        elif key == "kinds":
            accepted[key] = _kinds(value, problems)
        elif (problem := _problem(key, value, default_values[key])) is not None:
            shown = "…" if key == "proxy" and "@" in str(value) else mask(repr(value))
            problems.append(f"{key} = {shown}: {problem}")
        else:
            accepted[key] = expanded(str(value)) if key in PLACES else _frozen(value)
    if problems:
        raise ConfigError(f"{origin}: " + "; ".join(problems))
    return replace(defaults, **accepted)  # type: ignore[arg-type]


def _kinds(table: object, problems: list[str]) -> Mapping[str, HardwareKind]:
    """The kinds of a table of rows. What is wrong with the rows is added to `problems`."""
    kinds: dict[str, HardwareKind] = {}
    for name, row in table.items() if isinstance(table, Mapping) else [("", table)]:
        if name in (*GPU_KINDS.taken(), CPU):
            problems.append(f"kinds.{name}: this kind is known already; choose another name")
        elif not isinstance(row, Mapping):
            problems.append(f"{f'kinds.{name}'.rstrip('.')} = {row!r}: must be a table [tool.llmperf.kinds.NAME]")
        elif price := row.get("gpu_hour_price") is not None and _price_problem(row["gpu_hour_price"]):
            problems.append(f"kinds.{name}: gpu_hour_price: {price}")
        else:
            try:
                kinds[name] = kind_of_row(name, row)
            except ValueError as error:
                problems.append(f"kinds.{name}: {error}")
    for name, kind in kinds.items():
        if (twin := same_gpu(kind, (*GPU_KINDS.values(), *kinds.values()))) is not None:
            problems.append(f"kinds.{name}: the kind {twin} stands for the same GPU. Mark tests with {twin}, or give "
                            "one of the kinds a further word of nvml_words")
    return MappingProxyType(kinds)


def with_price_of_kind(settings: Settings, kind: str) -> Settings:
    """The settings with the price of the kind's row, if the settings themselves state none."""
    row = GPU_KINDS.get(kind)
    price = None if row is None or settings.gpu_hour_price else row.gpu_hour_price
    return settings if price is None else replace(settings, gpu_hour_price=price)


def with_engine_options(settings: Settings, options: list[str]) -> Settings:
    """Apply `--llmperf-engine NAME=PLACE` options: what the command line says of an engine holds on every kind.

    Raises:
        ConfigError: an option is not of that form.
    """
    given = dict(_place(option, "--llmperf-engine", "NAME=PLACE, e.g. vllm=.engines/vllm-cpu") for option in options)
    other_engines = {name: place for name, place in settings.engines.items() if name.partition("@")[0] not in given}
    return replace(settings, engines=other_engines | given)


def with_references(settings: Settings, options: list[str]) -> Settings:
    """Apply `--llmperf-reference ENGINE=PLACE` options: the place becomes the installation "ENGINE:reference".

    Raises:
        ConfigError: an option is not of that form, or an engine is named twice.
    """
    given: dict[str, str] = {}
    for option in options:
        engine, place = _place(option, "--llmperf-reference", "ENGINE=PLACE, e.g. vllm=/opt/engines/vllm-0.26", ":@")
        if f"{engine}:{REFERENCE}" in given:
            raise ConfigError(f"--llmperf-reference names two builds of {engine}. Name one.")
        given[f"{engine}:{REFERENCE}"] = place
    return replace(settings, engines={**settings.engines, **given})


def _place(option: str, name: str, form: str, excluded: str = "") -> tuple[str, str]:
    engine, equals, place = option.partition("=")
    if not (engine and equals and place) or set(excluded) & set(engine):
        raise ConfigError(f"{name} {option!r}: write it as {form} (a folder, an interpreter, a command or image:NAME).")
    return engine, place


def expanded(place: str) -> str:
    """A place with `~` as a shell reads it; one that is relative still is, to the project."""
    return os.path.expanduser(place)  # noqa: PTH111 - Path's raises where there is no such user


def _table(path: Path, keys: tuple[str, ...]) -> Mapping[str, object] | None:
    """The table under these keys; None if it is not there."""
    try:
        table = tomllib.loads(read_file(path).decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not readable as TOML: {error}") from error
    for key in keys:
        if key not in table:
            return None
        table = table[key]
        if not isinstance(table, dict):
            raise ConfigError(f"{path}: {key} = {table!r}: must be a table, [{'.'.join(keys)}]")
    return table


def _frozen(value: object) -> object:
    if isinstance(value, Mapping):
        return MappingProxyType(dict(value))
    return tuple(value) if isinstance(value, list) else value


def _problem(key: str, value: object, default: object) -> str | None:
    """What the value must be; None if the value fits."""
    if key == "gpu_hour_price":
        return None if value == default else _price_problem(value)
    if isinstance(value, str) and (value == default or (not value and key in MAY_BE_EMPTY)):
        return None
    of_type = next((fits, words) for kind, fits, words in OF_TYPE if isinstance(default, kind))
    rules = (of_type, *((fits, words) for ends, fits, words in OF_NAME if key.endswith(ends)))
    return next((words for fits, words in rules if not _holds(fits, value)), None)


def _holds(fits: Callable[[Any], object], value: object) -> bool:
    try:
        return bool(fits(value))
    except ValueError:  # no URL, or a quote that is never closed
        return False


def _price_problem(value: object) -> str | None:
    try:
        read_gpu_price(value)
    except ConfigError as error:
        return str(error)
    return None


def with_options(settings: Settings, options: list[str]) -> Settings:
    """Apply `--llmperf-set SETTING=VALUE` options. A value is written as in TOML, a text without quotes.

    Raises:
        ConfigError: an option is not of that form, or a setting refuses the value.
    """
    values: dict[str, object] = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals or key in TABLES:
            raise ConfigError(f"--llmperf-set {mask(option)}: write it as SETTING=VALUE, e.g. load_cpus=6,7. The "
                              f"tables {' and '.join(TABLES)} stand in pyproject.toml.")
        values[key] = value if isinstance(getattr(settings, key, ""), str) else _from_toml(value)
    accepted = settings_from(values, origin="--llmperf-set")
    return replace(settings, **{key: getattr(accepted, key) for key in values})


def _from_toml(text: str) -> object:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:  # the setting says what it takes
        return text
