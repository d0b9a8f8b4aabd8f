"""The one place that words results: limit, estimate, interval, what the verdict rests on, and the reason."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping

from pytest_llmperf.metrics import find, is_metric
from pytest_llmperf.metrics.units import Unit
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.baseline import YOUNG_BELOW
from pytest_llmperf.results.cause import Cause, Facts, NoFurtherRuns, Problem
from pytest_llmperf.results.check import CheckResult
from pytest_llmperf.results.conditions import VERSION, is_default
from pytest_llmperf.stats.decision import LOOKS, SLO_ALPHA

#: A ratio above this says that the spread of server starts is unknown rather than large.
LARGEST_KNOWN_SLOWDOWN = 3
SHOWN_PROBLEMS = 2
SHOWN_NAME = 80
SHOWN_LINE = 400
#: Why an undecided comparison measured no more runs, and the remedy.
STOPS: Mapping[NoFurtherRuns, str] = {
    NoFurtherRuns.OUT_OF_TIME: "--llmperf-extension-limit (or extension_limit_s) ended the comparison: allow more time",
    NoFurtherRuns.CACHE_NOT_RESET: (
        "no seed is sent again, because the cache is not emptied between runs: measure and store "
        f"perf.measure(…, runs={LOOKS[-1]})"
    ),
    NoFurtherRuns.TOKENS_UNVERIFIED: "no further run confirms a token count: make the server count tokens per chunk",
    NoFurtherRuns.VALUES_INFINITE: "no further run brings the answers of failed requests: find out why requests fail",
}
#: Engines as their makers write them.
ENGINES = {"vllm": "vLLM", "sglang": "SGLang", "transformers": "Hugging Face generate"}
#: Causes that another build may explain.
EXPLAINED_BY_BUILD = (
    Cause.WORSE, Cause.SPREAD_TOO_LARGE, Cause.RUNS_TOO_FEW, Cause.WORSE_THAN_REFERENCE, Cause.CHANGE_UNDECIDED,
)  # fmt: skip
#: Causes whose sentences give the reasons of failed requests.
NAME_FAILURES = (Cause.STATISTIC_INFINITE, Cause.VALUES_INFINITE, Cause.NO_REQUEST_SERVED)
#: Results of searches.
SEARCHED_RATES = ("max_rate", "max_conversation_rate")
MORE_STARTS = "measure on more server starts: perf.measure(spec, …, starts=N)"
NOT_THE_ENGINE = (
    "The cause is no flag of the engine, but an unfinished warm-up, heat, a leak or another process. Look at the gpu "
    "and server tables of the run file, send more warm-up requests, and run the test again."
)
BOUND_REMEDY = (
    "This model on these GPUs cannot be that fast. The answers come from a cache, a different model, different "
    "hardware, or a server that invents answers."
)


def limit_text(result: CheckResult) -> str:
    """"≤ 500 ms", "≥ 3×", "≤ +5.0 % tolerated, +2.0 % negligible"; "" without a limit."""
    if (texts := result.facts.get("texts")) is not None:
        return texts.get("limit", "")
    if result.unit is None or result.comparison is None or result.limit is None:
        return ""
    shown = f"{result.limit:g}×" if result.unit is Unit.RATIO else result.unit.show(result.limit)
    limit = f"{result.comparison.sign} {shown}"
    if "negligible" in result.facts:
        limit += f" tolerated, {_change(result, result.facts['negligible'])} negligible"
    return limit


def estimate_text(result: CheckResult) -> str:
    """The measured value with its unit, of a search the proven rate; of a comparison "12.97 → 14.64 ms, +12.9 %"; "-"
    where there is none."""
    if (texts := result.facts.get("texts")) is not None:
        return texts.get("measured", "")
    if "proven_rate" in result.facts:
        return f"{Unit.REQUESTS_PER_S.number(result.facts['proven_rate'])}/s, proven"
    if result.estimate is None or result.unit is None:
        return "-"
    shown = result.unit.show(result.estimate)
    return shown if result.before is None or result.after is None else f"{_before_after(result)}, {shown}"


def change_text(result: CheckResult) -> str:
    """The change against a baseline or a reference build: "+12.9 %"; "-" where there is none."""
    return "-" if result.estimate is None else _change(result, result.estimate)


def _before_after(result: CheckResult) -> str:
    before, after = result.before or 0.0, result.after or 0.0
    other = Unit.SHARE if result.unit is Unit.POINTS else Unit.COUNT
    unit = find(result.metric).unit if is_metric(result.metric) else other
    return f"{unit.number(before)} → {unit.show(after)}"


def interval_text(result: CheckResult) -> str:
    """"90 % CI 431–489 ms"; "" without an interval."""
    if (texts := result.facts.get("texts")) is not None:
        return texts.get("interval", "")
    interval = result.interval
    if interval is None or result.unit is None:
        return ""
    return f"{interval.level_percent:.3g} % CI {result.unit.show_range(interval.low, interval.high)}"


def basis_text(result: CheckResult) -> str:
    """How much data the verdict rests on: "4 of 1000 over, effective n 740, 3 runs on one server start"."""
    if (texts := result.facts.get("texts")) is not None:
        return texts.get("n", "")
    return ", ".join(_basis(result))


def reason_text(result: CheckResult) -> str:
    """Why the verdict is not a plain PASS, and what to do; "" for a plain PASS."""
    if result.cause is None:
        return ""
    text = REASONS[result.cause](result)
    if "guard" in result.facts and result.verdict in (Verdict.FAIL, Verdict.INCONCLUSIVE):
        text += f'; or accept the loss: allow={{"{result.facts["guard"]}": …}}'
    if "build_changes" in result.facts and result.cause in EXPLAINED_BY_BUILD:
        text += f"; first suspect: {_suspect(result.facts)}"
    if "unmeasured_side" in result.facts:
        text += f"; side {result.facts['unmeasured_side']} was therefore not measured"
    return text


def cause_text(result: CheckResult) -> str:
    """The first clause of the reason, for a summary line; of invalid runs their first problem."""
    if result.cause is Cause.RUNS_INVALID and result.problems:
        return _first_clause(problem_text(result.problems[0]))
    return _first_clause(reason_text(result))


def problem_text(problem: Problem) -> str:
    """Why a run is invalid, with its place: "A, run 1 (seed 0): the server restarted: …"."""
    facts = problem.facts
    side = f"{facts['side']}, " if "side" in facts else ""
    run = f"run {facts['run']} (seed {facts['seed']}): " if "run" in facts else ""
    return f"{side}{run}{PROBLEMS[problem.cause](facts)}"


def _first_clause(text: str) -> str:
    ends = [at for mark in ("; ", ". ") if (at := text.find(mark)) > 0]
    return text[: min(ends)] if ends else text.rstrip(".")


# What a verdict rests on


def _basis(result: CheckResult) -> Iterator[str]:
    facts = result.facts
    if "exceedances" in facts:
        yield f"{facts['exceedances']} of {facts['observations']} {facts['counted_as']}"
    if "questions" in facts:
        yield _of_questions(facts)
    if "refused_for" in facts:
        yield from _of_refusal(result)
    if "effective_n" in facts:
        yield f"effective n {'below 1' if facts['effective_n'] < 1 else format(facts['effective_n'], '.0f')}"
    if "stored_runs" in facts:
        yield f"{facts['runs']} runs against {facts['stored_runs']} of {_sessions(facts)}"
    elif "pairs" in facts:
        reference = f"against {facts['reference']} " if "reference" in facts else ""
        yield f"{_number(facts['pairs'], 'pair')} {reference}{_of_starts(facts)}"
    elif facts.get("counted_as") == "each run":
        yield f"each of {_number(facts['runs'], 'run')}"
    elif "runs" in facts or "starts" in facts:
        yield _of_runs(facts)
    yield from _qualifications(result)


def _of_questions(facts: Facts) -> str:
    if "correct" in facts:
        return f"{facts['correct']} of {_number(facts['questions'], 'question')} answered right"
    return (f"{_number(facts['questions'], 'question')}, {facts['only_a']} right on A alone and {facts['only_b']} on B "
            f"alone, exact McNemar p = {facts['p']:.2g}")


def _of_refusal(result: CheckResult) -> Iterator[str]:
    facts = result.facts
    if result.verdict is Verdict.PASS:
        yield f"{_ended(facts)}: {_quoted(facts)}"
    if "prediction" in facts:
        yield f"predicted before the start, not judged: {facts['prediction']}"


def _ended(facts: Facts) -> str:
    return f"{facts['ending']}, {facts['ended_after_s']:.1f} s after its start"


def _quoted(facts: Facts) -> str:
    shown = (line if len(line) <= SHOWN_LINE else line[:SHOWN_LINE] + "…" for line in facts["log_lines"])
    return " | ".join(f"“{line}”" for line in shown)


def _why_failed(facts: Facts) -> str:
    """Reasons of failed requests; "" for a file that was written without them."""
    return f" ({facts['failure_reasons']})" if "failure_reasons" in facts else ""


def _of_failures(result: CheckResult) -> Iterator[str]:
    facts = result.facts
    if "failed_requests" in facts and result.cause not in NAME_FAILURES:
        yield f"{_number(facts['failed_requests'], 'failed request')} counted as infinitely slow{_why_failed(facts)}"
    elif "failure_reasons" in facts and result.verdict is not Verdict.FAIL:
        yield f"failures: {facts['failure_reasons']}"


def _why_counted(facts: Facts) -> str:
    """The same where the failures themselves are counted."""
    return _why_failed(facts) if facts["counted_as"] == "failed" else ""


def _qualifications(result: CheckResult) -> Iterator[str]:
    facts = result.facts
    if "tokenizer" in facts:
        yield f"token counts by tokenizer {facts['tokenizer']}"
    if facts.get("exact"):
        yield "each exactly"
    yield from _of_failures(result)
    if "level_exceedances" in facts:
        yield (f"by the level model (slow changes move all requests by one factor): {facts['level_exceedances']} "
               f"beyond a limit {100 * facts['level_margin']:.2g} % lower")
    if "start_sd" in facts and "pairs" not in facts:
        yield f"provisional, with {_start_sd(facts)}"
    yield from _notes_on_search(result)
    if facts.get("no_loss_proven"):
        yield "no loss proven, none excluded"
    yield from _notes_on_slo(facts)
    if "unseen_gpu" in facts:
        yield f"telemetry of the declared {facts['unseen_gpu']} not seen"
    if result.verdict is Verdict.PASS and "stored_runs" in facts:
        yield _detectable(result)
    if "reference" in facts and result.verdict is not Verdict.FAIL:
        yield f"smallest detectable change {_change(result, facts['smallest_detectable'])}"
    if compared := builds_text(result):
        yield compared


def _notes_on_search(result: CheckResult) -> Iterator[str]:
    if result.metric in SEARCHED_RATES:
        yield "each run begins with an empty queue"
    for name, side in (("proven_rate", "within"), ("refuted_rate", "over")):
        if name in result.facts:
            yield f"{result.facts[name]:.4g}/s proven to be {side} the SLO"  # type: ignore[literal-required]


def _notes_on_slo(facts: Facts) -> Iterator[str]:
    if "longest_unseen_s" in facts:
        yield f"slow spells rarer than one in {facts['longest_unseen_s']:.2g} s are not excluded"
    if "unseen_requests" in facts:
        yield f"up to {100 * facts['unseen_requests']:.2g} % of requests slower than all seen are not excluded"
    if "unseen_starts" in facts:
        yield f"up to {100 * facts['unseen_starts']:.2g} % of server starts slower than all seen are not excluded"
    if "price" in facts:
        amount, currency, day = facts["price"].split()
        yield f"at {amount} {currency} per GPU hour of {day}"
    if "energy_gap" in facts:
        yield f"the energy counter and the sampled power differ by {100 * facts['energy_gap']:.0f} %"
    if "looks" in facts:
        yield f"error of {100 * SLO_ALPHA:g} % shared by {_number(facts['looks'], 'look')}"
    if facts.get("hardware_bound_unknown"):
        yield "no hardware bound known"


def builds_text(result: CheckResult) -> str:
    """Which builds and hosts a comparison with a baseline crosses; "" where host and build are stored.

    "vLLM 0.26.0 → 0.32.0; its defaults changed: max_num_batched_tokens 8192 → 16384".
    """
    facts = result.facts
    texts = []
    if "build_changes" in facts:
        part = facts.get("changed_sessions", 0) < facts.get("compared_sessions", 0)
        share = f"against {facts['changed_sessions']} of {facts['compared_sessions']} stored sessions: " if part else ""
        texts.append(share + _build_text(facts))
    if "stored_hosts" in facts:
        texts.append(_origin(facts))
    return "; ".join(texts)


def _origin(facts: Facts) -> str:
    """Where the stored sessions of a provisional comparison come from."""
    others = facts["stored_hosts"] - facts["host_stored"]
    hosts = [*(["this host"] if facts["host_stored"] else []), *([_number(others, "other host")] if others else [])]
    versions = f"{_engine(facts)} {' and '.join(facts['stored_versions'])}"
    sessions = _number(facts["compared_sessions"], "stored session")
    return f"provisional: {sessions} of {' and '.join(hosts)} with {versions}"


def _build_text(facts: Facts) -> str:
    changes = facts["build_changes"]
    defaults = {name: values for name, values in changes.items() if is_default(name)}
    others = {name: values for name, values in changes.items() if name not in (VERSION, *defaults)}
    texts = [f"{_engine(facts)} {_values(changes[VERSION])}"] if VERSION in changes else []
    if defaults:
        owner = "its" if VERSION in changes else f"{_engine(facts)}'s"
        texts.append(f"{owner} {_set_by(facts)} changed: {_changes(defaults)}")
    return "; ".join([*texts, *([_changes(others)] if others else [])])


def _suspect(facts: Facts) -> str:
    """The changed defaults, or the changed build if every default is equal."""
    changes = facts["build_changes"]
    defaults = {name: values for name, values in changes.items() if is_default(name)}
    return f"changed {_set_by(facts)}, {_changes(defaults)}" if defaults else f"the build, {_build_text(facts)}"


def _set_by(facts: Facts) -> str:
    """Nobody here knows which flags the operator of an endpoint gave."""
    return "settings" if facts["engine"] == "endpoint" else "defaults"


def _engine(facts: Facts) -> str:
    return ENGINES.get(facts["engine"], f"the {facts['engine'] or 'engine'}")


def _changes(changes: Mapping[str, list[str | None]]) -> str:
    return ", ".join(f"{name.removeprefix('engine.')} {_values(values)}" for name, values in sorted(changes.items()))


def _values(values: list[str | None]) -> str:
    *stored, now = ("absent" if value is None else value for value in values)
    return f"{' and '.join(stored)} → {now}"


def _of_runs(facts: Facts) -> str:
    if "runs" not in facts:
        return _number(facts["starts"], "server start")
    runs = _number(facts["runs"], "run")
    if facts.get("seeds", facts["runs"]) < facts["runs"]:
        runs += f" of {_number(facts['seeds'], 'seed')}"
    starts = facts.get("starts", 1)
    return f"{runs} on {'one server start' if starts == 1 else f'{starts} server starts'}"


def _of_starts(facts: Facts) -> str:
    if "start_sd" not in facts:
        return "on the same server start"
    return f"on {facts['starts_a']} + {facts['starts_b']} server starts, provisional, with {_start_sd(facts)}"


def _start_sd(facts: Facts) -> str:
    return f"a start-to-start sd of {100 * facts['start_sd']:.2g} % ({facts['start_sd_source']})"


def _sessions(facts: Facts) -> str:
    if facts["stored_sessions"] == 1:
        return (f"one session (provisional: assumed spread between sessions {100 * facts['session_sd']:.1f} %, "
                f"{facts['session_sd_source']})")
    return f"{facts['stored_sessions']} sessions"


def _detectable(result: CheckResult) -> str:
    facts = result.facts
    if "smallest_detectable" not in facts:
        return f"no regression fails {_until(facts)}"
    until = f", and no smaller regression fails {_until(facts)}" if _until(facts) else ""
    return f"smallest detectable change {_change(result, facts['smallest_detectable'])}{until}"


def _until(facts: Facts) -> str:
    runs = [f"before {facts['deciding_runs']} runs"] if "deciding_runs" in facts else []
    sessions = [f"against fewer than {facts['deciding_sessions']} sessions"] if "deciding_sessions" in facts else []
    return " ".join(runs + sessions)


def _change(result: CheckResult, value: float) -> str:
    return (result.unit or Unit.CHANGE).show(value)


def _number(count: float, noun: str) -> str:
    return f"{count:.0f} {noun}{'' if count == 1 else 's'}"


# Reasons of results


def _invalid(result: CheckResult) -> str:
    shown = " ".join(map(problem_text, result.problems[:SHOWN_PROBLEMS]))
    left = len(result.problems) - SHOWN_PROBLEMS
    more = f" And {_number(left, 'more problem')} like these." if left > 0 else ""
    return f"the runs are invalid: {shown}{more}"


def _unavailable(result: CheckResult) -> str:
    facts = result.facts
    missing, runs = facts["missing_runs"], facts["of_runs"]
    where = "in every run" if missing == runs else f"in {missing} of {runs} runs"
    return (f"{facts['metric']} is unavailable {where}{_of_side(facts)}: the metric needs {facts['needs']}. Make that "
            "available, or drop this check")


def unverified_text(facts: Facts) -> str:
    """Which metric rests on token counts that only the usage states, and what to do."""
    if "usage_tokens" in facts:
        return (f"unverified token count: {facts['metric']} rests on token counts, and tokenizer {facts['tokenizer']} "
                f"counts {facts['text_tokens']:,} tokens of text where the usage says {facts['usage_tokens']:,}"
                f"{_of_side(facts)}. Name the tokenizer of this model. If the service hides its reasoning, switch the "
                "reasoning off (fields=)")
    return (f"unverified token count: {facts['metric']} rests on token counts, and in {facts['missing_runs']} of "
            f"{facts['of_runs']} runs{_of_side(facts)} the usage alone states them. Make the server count tokens per "
            "chunk (continuous_usage_stats) or list token ids, let its /metrics be read, or name the tokenizer of an "
            "endpoint (tokenizer=)")


def _infinite(result: CheckResult) -> str:
    facts = result.facts
    failed = f"{_number(facts['failed_requests'], 'request')} failed{_why_failed(facts)}"
    if facts["statistic"] == "max":
        return f"{failed}, so the largest value is infinite"
    return (f"{failed}, and a failed request counts as infinitely slow, so the {facts['statistic']} is infinite. Limit "
            "a percentile, goodput or slo_attainment to state how many requests may fail")


def _no_interval(result: CheckResult) -> str:
    runs = result.facts["runs"]
    which = "one run gives" if runs == 1 else f"{runs} runs of one seed give"
    return f"{which} no confidence interval of {result.metric}; measure another seed"


def _beyond(result: CheckResult) -> str:
    return f"the {_bare_interval(result)} lies beyond the limit"


def _undecided(result: CheckResult) -> str:
    remedies = {"startup_s": MORE_STARTS, "max_rate": "search more often"}
    more = remedies.get(result.metric, f"measure more runs, or {MORE_STARTS.removeprefix('measure ')}")
    return f"the {_bare_interval(result)} contains the limit, so the test cannot decide; {more}"


def _bare_interval(result: CheckResult) -> str:
    interval, unit = result.interval, result.unit
    if interval is None or unit is None:
        return "interval"
    return f"{interval.level_percent:.3g} % interval ({unit.show_range(interval.low, interval.high)})"


def _runs_miss(result: CheckResult) -> str:
    facts = result.facts
    values = ", ".join(map((result.unit or Unit.COUNT).show, facts.get("violations", [])))
    return f"{facts['missing_runs']} of {facts['of_runs']} runs miss the limit" + (f": {values}" if values else "")


def _share(facts: Facts) -> str:
    return f"{100 * facts['share']:.3g} % {_being(facts)}"


def _being(facts: Facts) -> str:
    return {"over": "are over the limit", "missed": "miss a limit", "failed": "fail"}[facts["counted_as"]]


def _too_large(result: CheckResult) -> str:
    facts = result.facts
    return (f"{_share(facts)}{_why_counted(facts)}, and {100 * facts['allowed_share']:.3g} % may: the excess is proven "
            f"at {100 * facts['confidence']:g} % confidence")


def _near_limit(result: CheckResult) -> str:
    facts = result.facts
    return (f"{_share(facts)}, which is too near the allowed {100 * facts['allowed_share']:.3g} % for any affordable "
            "number of requests; choose another limit")


def _observations(result: CheckResult) -> str:
    facts = result.facts
    return (f"about {facts['needed']} more observations decide the check if {100 * facts['share']:.3g} % of them "
            f"{_being(facts)}, too; measure more requests or more runs")


def _dependent(result: CheckResult) -> str:
    facts = result.facts
    share = f"{_share(facts)}{_few_enough(facts)}, but " if "share" in facts else ""
    return (f"{share}neighbouring requests are more alike than independent ones, and runs of one seed cannot "
            "separate slow changes of the server from the course of the workload: measure runs of other seeds")


def _concurrent(result: CheckResult) -> str:
    return (f"{_share(result.facts)}, and requests that are served at the same time count as one observation: measure "
            "more runs, of other seeds")


def _few_enough(facts: Facts) -> str:
    return ", few enough for a PASS" if facts.get("few_enough") else ""


def _starts_differ(result: CheckResult) -> str:
    facts, times = result.facts, result.facts["slowdown"]
    head = f"{_share(facts)}{_few_enough(facts)}, but the server starts"
    if times > LARGEST_KNOWN_SLOWDOWN:
        return f"{head} are too few and differ too much to bound the slowdown of a further start; {MORE_STARTS}"
    slower = f"{100 * (times - 1):.2g} % slower" if times < 2 else f"{times:.2g} times as slow"
    return f"{head} differ so much that a further start may be {slower}; {MORE_STARTS}"


def _zero(result: CheckResult) -> str:
    return f"{result.facts['metric']} is 0 in a run, so there is no ratio"


def _infinite_values(result: CheckResult) -> str:
    facts = result.facts
    return (f"{facts['metric']} is infinite in {facts['missing_runs']} of {facts['of_runs']} runs{_of_side(facts)}: "
            f"{_number(facts['failed_requests'], 'request')} failed{_why_failed(facts)}, and a failed request counts "
            "as infinitely slow. Compare a percentile below the share of failures (a median, where less than half "
            "fail), or find out why requests fail")


def _ratio_missed(result: CheckResult) -> str:
    return f"the ratio is {estimate_text(result)}, proven to miss {limit_text(result)}"


def _ratio_near(_result: CheckResult) -> str:
    return "the ratio is too near the limit for an affordable number of server starts; claim less"


def _pairs(result: CheckResult) -> str:
    pairs = result.facts["pairs"]
    return (f"{_number(pairs, 'pair')} {'is' if pairs == 1 else 'are'} too few to decide at this ratio; measure more "
            "runs, or claim less")


def _drift(result: CheckResult) -> str:
    return (f"the pairs show that the machine drifts from run to run, which may explain "
            f"{result.facts['drift_share']:.0%} of this ratio; allow more pairs, whose order is reversed "
            "(--llmperf-extension-limit), or find what changes during the measurement")


def _starts(result: CheckResult) -> str:
    facts, needed = result.facts, result.facts["needed_starts"]
    most = f", and a claim makes at most {facts['most_starts']}" if "most_starts" in facts else ""
    return (f"about {needed} server starts per side decide the claim at this ratio{most}: measure each side with "
            f"perf.measure(…, starts={needed}) and compare both with perf.compare, or claim less")


def _endpoint(result: CheckResult) -> str:
    facts = result.facts
    state = f"if you know how much server starts differ, state it: start_sd={{{facts['metric']!r}: …}}"
    if "needed_start_sd" in facts:
        state += f" ({100 * facts['needed_start_sd']:g} % or less decides the claim at this ratio)"
    return f"an endpoint is never started again, so more runs add little; claim less, or {state}"


def _accuracy_lost(result: CheckResult) -> str:
    facts = result.facts
    share = Unit.SHARE
    before, after = share.number(result.before or 0.0), share.show(result.after or 0.0)
    lost = (f"A answers fewer questions right than B ({before} → {after}), and the {_bare_interval(result)} excludes "
            f"the tolerated loss of {_points(-(result.limit or 0.0))}")
    if "claimed" not in facts:
        return lost
    ratio = f"{facts['claimed']} is {Unit.RATIO.show(facts['claimed_ratio'])}"
    held = "meets the claim" if facts["claim_holds"] else "does not meet the claim either"
    return f"{lost}; {ratio}, which {held}"


def _points(share: float) -> str:
    return f"{100 * share:g} point{'' if share == 0.01 else 's'}"


def _questions(result: CheckResult) -> str:
    facts = result.facts
    if "correct" in facts or "needed" not in facts:
        more = "ask more questions, or choose another limit"
    else:
        more = f"about {facts['needed']} questions decide at these shares"
    return f"the {_bare_interval(result)} contains the limit, so the test cannot decide; {more}"


def _engine_started(result: CheckResult) -> str:
    return (f"the engine started, and the test expects that it refuses {result.facts['refused_for']}. Find out what "
            "raised the engine's limit, or choose a value beyond the new limit")


def _refused_otherwise(result: CheckResult) -> str:
    facts = result.facts
    quoted = f"Its log says: {_quoted(facts)}" if facts["log_lines"] else "Its log is empty"
    where = f". Read {facts['log']}" if "log" in facts else ""
    return (f"the engine ended before it was ready ({_ended(facts)}), and none of its error messages names "
            f"{facts['refused_for']}. {quoted}{where}")


def _conditions(result: CheckResult) -> str:
    facts = result.facts
    required = facts.get("same_build", [])
    differ = f"take {' and '.join(map(json.dumps, required))} out of same_build, " if required else ""
    return (f"{'; '.join(_differences(facts))}. Measure under the stored conditions, "
            f'{differ}or start the baseline anew with --update-baselines --llmperf-accept "REASON".')


def _differences(facts: Facts) -> Iterator[str]:
    for name, (stored, now) in facts["differing"].items():
        yield f"{name}: {stored or 'absent'} stored, {now or 'absent'} now"
    for metric in facts["missing_metrics"]:
        yield f"{metric} is not stored under these conditions"
    for name, field in facts["suggestions"].items():
        yield f"compare_across names {name}; did you mean {field}?"
    for name, field in facts.get("same_build_suggestions", {}).items():
        yield f"same_build names {name}; did you mean {field}?"


def _no_primary(result: CheckResult) -> str:
    return (f"none of the usual metrics has a value in each of {result.facts['runs']} runs. Did requests fail? Name "
            "the metrics to compare: primaries=[…].")


def _nothing_stored(result: CheckResult) -> str:
    return (f"no baseline is stored for this test on {result.facts['kind']}. Create one with "
            "--update-baselines-new.")


def _not_comparable(result: CheckResult) -> str:
    return f"{result.metric} cannot be compared: {result.facts['text']}."


def _runs_drift(result: CheckResult) -> str:
    return (f"not steady: compared with the stored runs of the same seeds, {result.metric} drifts from run to run "
            f"(p = {result.facts['p']:.1g}). {NOT_THE_ENGINE}")


def _changed_from(result: CheckResult) -> str:
    facts = result.facts
    level = f"the reference build ({facts['reference']})" if "reference" in facts else "its baseline"
    change = _change(result, result.estimate or 0.0)
    if result.before is None or result.after is None:
        return f"{result.metric} changed by {change} against {level}"
    return f"{result.metric} changed {_before_after(result)} ({change}) against {level}"


def _worse(result: CheckResult) -> str:
    return (f"{_changed_from(result)}; the regression is proven to exceed the negligible "
            f"{_change(result, result.facts['negligible'])}")


def _better(result: CheckResult) -> str:
    return f"{_changed_from(result)}: better. Store the new level with --update-baselines"


def _runs_too_few(result: CheckResult) -> str:
    facts = result.facts
    below = f" below {_change(result, facts['smallest_detectable'])}" if "smallest_detectable" in facts else ""
    more = ", or store more sessions" if "deciding_sessions" in facts else ""
    return (f"no regression{below} fails {_until(facts)}, and after {_number(facts['runs'], 'run')} "
            f"{_stop_text(facts)}{more}")


def _stop_text(facts: Facts) -> str:
    return STOPS[NoFurtherRuns(facts["no_further_runs"])]


def _spread(result: CheckResult) -> str:
    facts = result.facts
    few = facts["stored_sessions"] < YOUNG_BELOW
    more = "store more sessions" if few else "compare with the baseline's build on this machine today"
    return (f"runs differ by {100 * facts['run_sd']:.1f} % and sessions by {100 * facts['session_sd']:.1f} % (sd): "
            f"{more}, or give this metric a wider margin")


def _change_undecided(result: CheckResult) -> str:
    facts = result.facts
    stop = f"; {_stop_text(facts)}" if "no_further_runs" in facts else ""
    negligible, tolerated = (_change(result, margin) for margin in (facts["negligible"], result.limit or 0.0))
    return (f"{_changed_from(result)}, and the {_bare_interval(result)} proves neither more than the negligible "
            f"{negligible} nor less than the tolerated {tolerated}{stop}")


REASONS: Mapping[Cause, Callable[[CheckResult], str]] = {
    Cause.STATED: lambda result: result.facts["text"],
    Cause.METRIC_UNAVAILABLE: _unavailable,
    Cause.TOKENS_UNVERIFIED: lambda result: unverified_text(result.facts),
    Cause.RUNS_INVALID: _invalid,
    Cause.NO_REQUEST_SERVED: lambda result: (
        f"{result.facts['missing_runs']} of {result.facts['of_runs']} runs served no request"
        f"{_why_failed(result.facts)}"),
    Cause.STATISTIC_INFINITE: _infinite,
    Cause.NO_INTERVAL: _no_interval,
    Cause.REQUESTS_DEPENDENT: _dependent,
    Cause.REQUESTS_CONCURRENT: _concurrent,
    Cause.BEYOND_LIMIT: _beyond,
    Cause.LIMIT_IN_INTERVAL: _undecided,
    Cause.RUNS_MISS_LIMIT: _runs_miss,
    Cause.REQUESTS_MISS_LIMIT: lambda result: (
        f"{result.facts['exceedances']} of {result.facts['observations']} requests "
        f"{'failed' if result.facts['counted_as'] == 'failed' else 'missed a limit'}{_why_counted(result.facts)}"),
    Cause.SHARE_TOO_LARGE: _too_large,
    Cause.SHARE_NEAR_LIMIT: _near_limit,
    Cause.OBSERVATIONS_TOO_FEW: _observations,
    Cause.STARTS_DIFFER: _starts_differ,
    Cause.RATE_REFUTED: lambda _result: "a rate on the wrong side of the limit was tried, and its verdict is proven",
    Cause.RATE_UNDECIDED: lambda _result: (
        "no tried rate proves on which side of the limit the highest rate lies; try the limit itself (perf.max_rate(…, "
        "try_rates=[…])), or search with more requests"),
    Cause.VALUE_ZERO: _zero,
    Cause.VALUES_INFINITE: _infinite_values,
    Cause.RATIO_MISSES_LIMIT: _ratio_missed,
    Cause.RATIO_NEAR_LIMIT: _ratio_near,
    Cause.PAIRS_TOO_FEW: _pairs,
    Cause.MACHINE_DRIFTS: _drift,
    Cause.STARTS_TOO_FEW: _starts,
    Cause.ENDPOINT_STARTS_UNKNOWN: _endpoint,
    Cause.ACCURACY_LOST: _accuracy_lost,
    Cause.QUESTIONS_TOO_FEW: _questions,
    Cause.ACCURACY_NOT_EMULATED: lambda _result: (
        "not measured: an emulator invents its answers. Run the test on the engine itself"),
    Cause.ENERGY_NOT_EMULATED: lambda _result: (
        "not seen: an emulated GPU draws no power and runs no kernel. Run the test on the GPU itself"),
    Cause.ENGINE_STARTED: _engine_started,
    Cause.REFUSED_OTHERWISE: _refused_otherwise,
    Cause.NO_PRIMARY_METRIC: _no_primary,
    Cause.NOTHING_STORED: _nothing_stored,
    Cause.CONDITIONS_DIFFER: _conditions,
    Cause.VALUE_NOT_COMPARABLE: _not_comparable,
    Cause.RUNS_DRIFT: _runs_drift,
    Cause.WORSE: _worse,
    Cause.BETTER: _better,
    Cause.RUNS_TOO_FEW: _runs_too_few,
    Cause.SPREAD_TOO_LARGE: _spread,
    Cause.WORSE_THAN_REFERENCE: _worse,
    Cause.BETTER_THAN_REFERENCE: lambda result: f"{_changed_from(result)}: better",
    Cause.CHANGE_UNDECIDED: _change_undecided,
}


def _of_side(facts: Facts) -> str:
    return f" of {facts['side']}" if "side" in facts else ""


# Problems of runs


def _counts_disagree(facts: Facts) -> str:
    return (f"token counts disagree in {facts['answers']} of {facts['of_answers']} answers (first: {facts['first']}): "
            "the server, or a proxy in front of it, reports other tokens than it sends.")


def _other_model(facts: Facts) -> str:
    name, *declared = facts["names"]
    others = f" (and {_number(facts['other_names'], 'other name')})" if facts["other_names"] else ""
    aliases = f"; declared: {', '.join(map(repr, declared))}" if declared else ""
    return (f"{facts['answers']} of {facts['of_answers']} answers came from model {shortened(name)}{others}, and "
            f"{facts['asked_model']!r} was requested{aliases}. If both names mean one model, declare the name: "
            'model_alias="…" in the engine or endpoint.')


def shortened(name: str) -> str:
    """A name that a server gave, quoted and cut to a length that a message can show."""
    return repr(name if len(name) <= SHOWN_NAME else name[:SHOWN_NAME] + "…")


def _below_bound(facts: Facts) -> str:
    return (f"{facts['text']} is below the lower bound of {facts['gpus']} in {facts['answers']} of "
            f"{facts['of_answers']} requests (above {facts['share']:.1%} of all at {facts['confidence']:.0%} "
            f"confidence): {facts['measured_ms']:.3g} ms measured, at least {facts['least_ms']:.3g} ms possible "
            f"({facts['bound_by']}). {BOUND_REMEDY}")


def _requests_failed(facts: Facts) -> str:
    failures = (f"{facts['answers']} of {facts['of_answers']} requests failed ({facts['text']}; first: "
                f"{facts['first']}). ")
    rate_limited = facts.get("rate_limited_answers", 0)
    if not rate_limited:
        return f'{failures}Name "error_rate == 0" in the check to have failures judged as an SLO.'
    others = "" if rate_limited == facts["answers"] else ', and "error_rate == 0" to have other failures judged'
    return (f'{failures}Lower the rate, send refused requests again with retried(…), or name "rate_limited_rate == 0" '
            f"in the check to have refusals judged as an SLO{others}.")


def _not_streamed(facts: Facts) -> str:
    return (f"{facts['answers']} of {facts['of_answers']} answers of several tokens came in one piece (limit "
            f"{facts['limit']:.0%}), so neither their TTFT nor their time per output token is known. Does the server "
            "stream token by token, and does a proxy pass tokens on at once? If answers come whole, limit E2E latency.")


def _late(what: str) -> Callable[[Facts], str]:
    def of_their_time(facts: Facts) -> str:
        if "share_limit" not in facts:  # a run file that was written when p99 alone was limited
            return ""
        return f" and for {facts['share']:.1%} of their time (limit {facts['share_limit']:.0%})"

    def text(facts: Facts) -> str:
        values = what.format(ms=facts["measured_ms"], limit_ms=facts["limit_ms"],
                             kernel=facts.get("kernel_stamped", 0.0), of_their_time=of_their_time(facts))
        return f"load generator saturated: {values}. {_load_state(facts)}{_load_remedy(facts)}"

    return text


def _coalesced(facts: Facts) -> str:
    return (f"{facts['share']:.0%} of the chunks arrived together with the chunk before (limit {facts['limit']:.0%}), "
            f"so gaps between chunks do not describe the server. {_load_state(facts)}Either the load generator lacks "
            "CPU, or a proxy in front of the server sends chunks in batches.")


def _load_state(facts: Facts) -> str:
    if "load_processes" not in facts:
        return ""
    where = f"on {facts['load_cpus']} CPUs {'of their own' if facts['own_cpus'] else 'that servers share'}"
    delay = facts.get("read_delay_ms")
    read = "" if delay is None else f", read bytes {delay:.1f} ms after their arrival (p99)"
    return f"{facts['load_processes']} load process(es) {where}, busy {facts['busy']:.0%} of the time{read}. "


def _load_remedy(facts: Facts) -> str:
    """Remedy for a late load generator. More load processes help only if a load process was busy; otherwise a different
    program took the CPU."""
    ways = ["send from another host", "lower the rate", "or raise the limit"]
    if not facts.get("own_cpus"):
        ways.insert(0, "give it a free core (load_cpus)")
    if facts.get("busy", 0.0) > 0.5:
        ways.insert(0, f"raise load_processes (now {facts['load_processes']})")
    text = ", ".join(ways)
    return text[0].upper() + text[1:] + "."


def _cache_not_empty(facts: Facts) -> str:
    source = " by the usage of the answers" if facts["by_usage"] else ""
    return (f"prefix-cache hit rate {facts['hit_rate']:.1%}{source}, and these requests can have "
            f"{facts['most_hit_rate']:.1%} at most: prompts of an earlier run were still cached.")


def _throttled(facts: Facts) -> str:
    heat = f", up to {facts['temperature_c']} °C" if "temperature_c" in facts else ""
    return (f"the GPU was throttled ({', '.join(facts['throttle_reasons'])}) in {facts['samples']} of "
            f"{facts['of_samples']} samples{heat}, so the engine did not determine its clocks. Check cooling and "
            "power, let the GPU rest, and run the test again.")


def _not_steady(facts: Facts) -> str:
    levels = ", ".join(f"{level:.4g}" for level in facts["levels"])
    return (f"runs {facts['first_run']} to {facts['last_run']} (server start {facts['start_id']}): not steady: "
            f"{facts['metric']} {levels} ms, {_level_change(facts)} "
            f"(p = {facts['p']:.1g}). {NOT_THE_ENGINE}")


def _level_change(facts: Facts) -> str:
    """From which part of the runs to which the level changes."""
    percent = f"{100 * facts['drift']:+.1f} %"
    if facts.get("beginning"):
        return f"{percent} from the first fifth of run {facts['first_run']} to that of the other runs"
    if "before" not in facts:
        return f"a drift of {percent} from the first to the last run"
    first = "run" if facts["before"] == 1 else f"{facts['before']} runs"
    return f"{percent} from the first {first} to the later runs"


PROBLEMS: Mapping[Cause, Callable[[Facts], str]] = {
    Cause.TOKEN_COUNTS_DISAGREE: _counts_disagree,
    Cause.OTHER_MODEL: _other_model,
    Cause.BELOW_HARDWARE_BOUND: _below_bound,
    Cause.REQUESTS_FAILED: _requests_failed,
    Cause.ANSWERS_NOT_STREAMED: _not_streamed,
    Cause.REQUESTS_SENT_LATE: _late("requests were sent {ms:.1f} ms late (p99, limit {limit_ms:g} ms)"),
    Cause.SLOTS_EMPTY: _late("slots of the closed loop stood empty for {ms:.1f} ms (p99, limit {limit_ms:g} ms)"
                             "{of_their_time}"),
    Cause.ARRIVALS_STAMPED_LATE: _late("arrivals may be stamped {ms:.1f} ms late (p99, limit {limit_ms:g} ms), because "
                                       "the kernel stamped only {kernel:.0%} of the reads"),
    Cause.CLOCKS_UNCERTAIN: lambda facts: (
        f"the clock of load host {facts['load_host']} is known to {facts['clock_error_ms']:.1f} ms only, so stamps may "
        f"be wrong by {facts['measured_ms']:.1f} ms (limit {facts['limit_ms']:g} ms): questions for its time took too "
        "long. Start Ray on a head node near the load hosts, end what else runs there, lower the rate, or raise "
        "stamp_error_p99_limit_ms."),
    Cause.CHUNKS_COALESCED: _coalesced,
    Cause.LOAD_PROCESS_SUSPENDED: lambda facts: (
        f"the load process did not run for {facts['measured_ms']:.0f} ms (limit {facts['limit_ms']:g} ms): the machine "
        "was suspended or lacked CPU."),
    Cause.SERVER_RESTARTED: lambda facts: f"the server restarted itself: {facts['text']} between two readings.",
    Cause.SERVICE_SCALED: lambda facts: (
        f"the service was not steady: {facts['text']}. Its runs are of different services: keep the number of replicas "
        "fixed while you measure (no autoscaler, no rollout), and find out why a replica ended."),
    Cause.CACHE_NOT_EMPTY: _cache_not_empty,
    Cause.LMCACHE_UNUSED: lambda facts: (
        f"LMCache is attached and had no hit: {facts['reuse']:.0%} of the prompt tokens repeat, and the engine's own "
        f"cache had only {facts['hit_rate']:.0%}."),
    Cause.PREEMPTIONS: lambda facts: (
        f"{_number(facts['count'], 'preemption')}: the KV cache was too small for this load. Name preemptions in the "
        "check, or allow them with perf.measure(…, may_preempt=True)."),
    Cause.FOREIGN_REQUESTS: lambda facts: (
        f"the server finished {_number(facts['counted'], 'request')} and this run sent {facts['count']:.0f}: another "
        "client uses the server."),
    Cause.TOKENS_MISCOUNTED: lambda facts: (
        f"answers report {_number(facts['count'], 'generated token')}, and the server counted {facts['counted']:.0f}."),
    Cause.GPU_CONTENDED: lambda facts: (
        f"the GPU was contended: {facts['text']}. End that program, give this run a GPU of its own with "
        "CUDA_VISIBLE_DEVICES, and run the test again."),
    Cause.GPU_THROTTLED: _throttled,
    Cause.GPU_FAULT: lambda facts: (
        f"{facts['text']}. Look at `nvidia-smi -q` and the kernel's log (dmesg) before you measure on this GPU again."),
    Cause.GPUS_MIXED: lambda facts: (
        f"the server ran on several GPU models, {' and '.join(facts['names'])}: choose equal GPUs with "
        "CUDA_VISIBLE_DEVICES."),
    Cause.GPU_PARTITIONED: lambda facts: (
        f"GPU {facts['gpu']} ({facts['text']}) is partitioned (MIG), and a slice is not the hardware of the test's "
        "marker. Switch MIG off with nvidia-smi -mig 0."),
    Cause.GPU_SETTINGS_CHANGED: lambda facts: (
        f"the settings of GPU {facts['gpu']} differ from those of the first run: {', '.join(facts['settings'])}. "
        "Measure again."),
    Cause.NOT_STEADY: _not_steady,
}
