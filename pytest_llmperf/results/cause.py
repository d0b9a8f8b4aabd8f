"""Why a check concluded what it concluded: a cause from a fixed list, and the numbers behind it.

`results.sentences` makes every sentence from a cause and its facts. No other module words a result.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum, auto
from typing import TypedDict


class Cause(StrEnum):
    """Why a verdict is not a plain PASS, or why a run is invalid."""

    # Any check
    STATED = auto()  # a test's own result gives its reason as text
    METRIC_UNAVAILABLE = auto()
    TOKENS_UNVERIFIED = auto()
    RUNS_INVALID = auto()
    # SLOs
    NO_REQUEST_SERVED = auto()
    STATISTIC_INFINITE = auto()
    NO_INTERVAL = auto()
    REQUESTS_DEPENDENT = auto()
    REQUESTS_CONCURRENT = auto()
    BEYOND_LIMIT = auto()
    LIMIT_IN_INTERVAL = auto()
    RUNS_MISS_LIMIT = auto()
    REQUESTS_MISS_LIMIT = auto()
    SHARE_TOO_LARGE = auto()
    SHARE_NEAR_LIMIT = auto()
    OBSERVATIONS_TOO_FEW = auto()
    STARTS_DIFFER = auto()
    RATE_REFUTED = auto()
    RATE_UNDECIDED = auto()
    # Claims and ratios
    VALUE_ZERO = auto()
    VALUES_INFINITE = auto()
    RATIO_MISSES_LIMIT = auto()
    RATIO_NEAR_LIMIT = auto()
    PAIRS_TOO_FEW = auto()
    MACHINE_DRIFTS = auto()
    STARTS_TOO_FEW = auto()
    ENDPOINT_STARTS_UNKNOWN = auto()
    # Accuracies
    ACCURACY_LOST = auto()
    QUESTIONS_TOO_FEW = auto()
    ACCURACY_NOT_EMULATED = auto()
    # Energies
    ENERGY_NOT_EMULATED = auto()
    # Refusals
    ENGINE_STARTED = auto()
    REFUSED_OTHERWISE = auto()
    # Baseline comparisons
    NO_PRIMARY_METRIC = auto()
    NOTHING_STORED = auto()
    CONDITIONS_DIFFER = auto()
    VALUE_NOT_COMPARABLE = auto()
    RUNS_DRIFT = auto()
    WORSE = auto()
    BETTER = auto()
    RUNS_TOO_FEW = auto()
    SPREAD_TOO_LARGE = auto()
    # Comparisons with a reference build
    WORSE_THAN_REFERENCE = auto()
    BETTER_THAN_REFERENCE = auto()
    CHANGE_UNDECIDED = auto()
    # Invalid runs
    TOKEN_COUNTS_DISAGREE = auto()
    OTHER_MODEL = auto()
    BELOW_HARDWARE_BOUND = auto()
    REQUESTS_FAILED = auto()
    ANSWERS_NOT_STREAMED = auto()
    REQUESTS_SENT_LATE = auto()
    SLOTS_EMPTY = auto()
    ARRIVALS_STAMPED_LATE = auto()
    CLOCKS_UNCERTAIN = auto()
    CHUNKS_COALESCED = auto()
    LOAD_PROCESS_SUSPENDED = auto()
    SERVER_RESTARTED = auto()
    SERVICE_SCALED = auto()
    CACHE_NOT_EMPTY = auto()
    LMCACHE_UNUSED = auto()
    PREEMPTIONS = auto()
    FOREIGN_REQUESTS = auto()
    TOKENS_MISCOUNTED = auto()
    GPU_CONTENDED = auto()
    GPU_THROTTLED = auto()
    GPU_FAULT = auto()
    GPUS_MIXED = auto()
    GPU_PARTITIONED = auto()
    GPU_SETTINGS_CHANGED = auto()
    NOT_STEADY = auto()


class NoFurtherRuns(StrEnum):
    """Why an undecided comparison or claim measures no more runs; the fact `no_further_runs`."""

    OUT_OF_TIME = auto()
    CACHE_NOT_RESET = auto()
    TOKENS_UNVERIFIED = auto()
    VALUES_INFINITE = auto()


class Facts(TypedDict, total=False):
    """Numbers and names behind a result or an invalid run; shares are 0…1, and a missing fact is absent."""

    # What a result rests on
    runs: int
    seeds: int
    starts: int
    exact: bool  # the limit holds for each run exactly, without statistics
    observations: int
    exceedances: int  # observations over the limit
    counted_as: str  # "over", "missed" or "failed"
    effective_n: float  # independent observations that carry the same information
    level_exceedances: int  # exceedances of the limit lowered by `level_margin`
    level_margin: float  # share by which the level model lowers the limit
    failed_requests: int
    failure_reasons: str  # reasons of failed requests with their counts, the most frequent first
    energy_gap: float  # relative difference of energy counter and sampled power, where it is large
    price: str  # of a GPU hour, with currency and date
    longest_unseen_s: float  # slow spells with a longer mean distance are not excluded
    unseen_starts: float  # share of slow server starts that is not excluded
    unseen_requests: float  # share of requests, slower than all that were seen, that is not excluded
    hardware_bound_unknown: bool
    unseen_gpu: str  # declared hardware kind of an endpoint
    looks: int  # looks that share the error of the verdict; absent for a single look
    proven_rate: float  # requests/s
    refuted_rate: float  # requests/s
    pairs: int
    starts_a: int
    starts_b: int
    start_sd: float  # of the metric's logarithm, from one server start to the next
    start_sd_source: str
    no_loss_proven: bool
    questions: int  # of a task
    correct: int  # questions with a right answer
    only_a: int  # questions that A alone answers right
    only_b: int
    claimed: str  # the ratio of a claim whose side A lost accuracy
    claimed_ratio: float
    claim_holds: bool  # whether that ratio met the claim
    stored_runs: int
    stored_sessions: int
    session_sd: float
    session_sd_source: str
    run_sd: float
    reference: str  # the build that a candidate was compared with: "vllm 0.26.0"
    smallest_detectable: float  # change that fails with 90 % probability
    negligible: float  # change
    deciding_runs: int  # runs before which not every regression can fail
    deciding_sessions: int  # stored sessions of each test of the suite below which only gross regressions can fail
    # Of a refusal
    refused_for: str  # the named flag or phrase
    ending: str  # how the engine ended: "exit code 1"
    ended_after_s: float  # from launch
    log_lines: list[str]  # error messages of the engine, or the last lines of its log
    log: str  # path
    prediction: str  # why the engine should refuse by our own arithmetic
    # Builds and hosts of a baseline comparison
    engine: str
    compared_sessions: int
    build_changes: dict[str, list[str | None]]  # field of the build → other stored values, then today's value
    changed_sessions: int  # stored sessions of another build
    stored_hosts: int  # with the next two: the result is provisional
    host_stored: bool  # whether today's host is among them
    stored_versions: list[str]  # of the engine
    # Why
    text: str
    texts: dict[str, str]  # sentences of a file that has no numbers
    metric: str
    missing_runs: int
    tokenizer: str  # that counted the received texts
    text_tokens: int  # by that tokenizer
    usage_tokens: int  # of the same answers
    of_runs: int
    side: str
    needs: str
    statistic: str
    share: float
    share_limit: float
    allowed_share: float
    confidence: float
    needed: int
    few_enough: bool
    slowdown: float
    violations: list[float]
    no_further_runs: str  # a value of `NoFurtherRuns`
    needed_starts: int
    most_starts: int  # of each side that a claim makes
    needed_start_sd: float
    drift_share: float
    guard: str  # of a claim: the guard metric that the check judges
    allowed: str  # of a claim: the metric that the check judges, whose loss the claim accepts
    unmeasured_side: str
    differing: dict[str, list[str | None]]  # condition → stored value, value of today
    missing_metrics: list[str]
    suggestions: dict[str, str]  # unknown name in compare_across → the field that it resembles
    same_build: list[str]  # fields of the build that differ and that the setting same_build names
    same_build_suggestions: dict[str, str]  # unknown name in same_build → the changed field that it resembles
    kind: str
    p: float
    # Of an invalid run
    run: int
    seed: int
    answers: int
    rate_limited_answers: int  # failed requests that the server refused for now
    of_answers: int
    first: str  # the detail of the first affected answer
    names: list[str]
    asked_model: str
    other_names: int
    gpus: str
    least_ms: float
    measured_ms: float
    bound_by: str
    limit: float
    limit_ms: float
    kernel_stamped: float
    clock_error_ms: float
    load_host: str
    load_processes: int
    load_cpus: int
    own_cpus: bool
    busy: float
    read_delay_ms: float
    hit_rate: float
    most_hit_rate: float
    by_usage: bool
    reuse: float
    count: float
    counted: float
    samples: int
    of_samples: int
    throttle_reasons: list[str]
    temperature_c: int
    gpu: int
    settings: list[str]
    first_run: int
    last_run: int
    start_id: int
    levels: list[float]
    drift: float
    before: int  # runs before a change of level; absent for a straight line through all runs
    beginning: bool  # the first fifth of the first run differs from that of the other runs


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a run is invalid.

    Args:
        cause: from the last part of the list.
        facts: the numbers behind the cause; `side`, `run` and `seed` say where.
    """

    cause: Cause
    facts: Facts
