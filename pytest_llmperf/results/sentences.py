"""The one place that words results: limit, estimate, interval, what the verdict rests on, and the reason."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from pytest_llmperf.metrics import Unit, find, is_metric
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.releases.changes import DEFAULT, changed_defaults
from pytest_llmperf.releases.stored import build_of
from pytest_llmperf.results.check import CheckResult, Facts, Problem
from pytest_llmperf.results.conditions import VERSION, is_default
from pytest_llmperf.stats.decision import SLO_ALPHA

SHOWN_LINE = 400
#: Engines as their makers write them.
ENGINES = {"vllm": "vLLM", "sglang": "SGLang", "transformers": "Hugging Face generate"}
#: Words in names of flags that decide how fast an engine serves.
SPEED = re.compile("attn|batch|cache|chunk|graph|overlap|prefix|radix|schedul|swa")
SHOWN_DEFAULTS = 4
#: Results of searches.
SEARCHED_RATES = ("max_rate", "max_conversation_rate")


def limit_text(result: CheckResult) -> str:
    """"≤ 500 ms", "≥ 3×", "≤ +5.0 % tolerated, +2.0 % negligible"; "" without a limit."""
    if (texts := result.facts.get("texts")) is not None:
        return texts.get("limit", "")
    if result.unit is None or result.comparison is None or result.limit is None:
        return ""
    shown = f"{result.limit:g}×" if result.unit is Unit.RATIO else result.unit.show(result.limit)
    limit = f"{result.comparison.sign} {shown}"
    if "negligible" in result.facts:
        limit += f" tolerated, {change(result, result.facts['negligible'])} negligible"
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
    return shown if result.before is None or result.after is None else f"{before_and_after(result)}, {shown}"


def change_text(result: CheckResult) -> str:
    """The change against a baseline or a reference build: "+12.9 %"; "-" where there is none."""
    return "-" if result.estimate is None else change(result, result.estimate)


def before_and_after(result: CheckResult) -> str:
    """"12.97 → 14.64 ms"."""
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


def bare_interval(result: CheckResult) -> str:
    """"90 % interval (431–489 ms)"."""
    interval, unit = result.interval, result.unit
    if interval is None or unit is None:
        return "interval"
    return f"{interval.level_percent:.3g} % interval ({unit.show_range(interval.low, interval.high)})"


def basis_text(result: CheckResult) -> str:
    """How much data the verdict rests on: "4 of 1000 over, effective n 740, 3 runs on one server start"."""
    if (texts := result.facts.get("texts")) is not None:
        return texts.get("n", "")
    return ", ".join(_basis(result))


def reason_text(result: CheckResult) -> str:
    """Why the verdict is not a plain PASS, and what to do; "" for a plain PASS."""
    if result.cause is None:
        return ""
    text = result.cause.reason(result)
    if "nothing_counted" in result.facts and not result.cause.names_nothing_counted:
        text = f"{result.facts['nothing_counted']}: {text}"
    if "guard" in result.facts and result.verdict in (Verdict.FAIL, Verdict.INCONCLUSIVE):
        text += f'; or accept the loss: allow={{"{result.facts["guard"]}": …}}'
    if "build_changes" in result.facts and result.cause.explained_by_build:
        text += f"; first suspect: {_suspect(result.facts)}"
    if "unmeasured_side" in result.facts:
        text += f"; side {result.facts['unmeasured_side']} was therefore not measured"
    return text


def cause_text(result: CheckResult) -> str:
    """The first clause of the reason, for a summary line; of invalid runs their first problem."""
    if result.problems:
        return _first_clause(problem_text(result.problems[0]))
    return _first_clause(reason_text(result))


def problem_text(problem: Problem) -> str:
    """Why a run is invalid, with its place: "A, run 1 (seed 0): the server restarted: …"."""
    side = f"{problem.side}, " if problem.side else ""
    run = "" if problem.run is None else f"run {problem.run} (seed {problem.seed}): "
    return f"{side}{run}{problem.fault.reason()}"


def _first_clause(text: str) -> str:
    ends = [at for mark in ("; ", ". ") if (at := text.find(mark)) > 0]
    return text[: min(ends)] if ends else text.rstrip(".")


# What a verdict rests on


def _basis(result: CheckResult) -> Iterator[str]:
    facts = result.numbers
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
        yield f"{number(facts['pairs'], 'pair')} {reference}{_of_starts(facts)}"
    elif facts.get("counted_as") == "each run":
        yield f"each of {number(facts['runs'], 'run')}"
    elif "runs" in facts or "starts" in facts:
        yield _of_runs(facts)
    yield from _qualifications(result)


def _of_questions(facts: Facts) -> str:
    if "correct" in facts:
        return f"{facts['correct']} of {number(facts['questions'], 'question')} answered right"
    return (f"{number(facts['questions'], 'question')}, {facts['only_a']} right on A alone and {facts['only_b']} on B "
            f"alone, exact McNemar p = {facts['p']:.2g}")


def _of_refusal(result: CheckResult) -> Iterator[str]:
    facts = result.numbers
    if result.verdict is Verdict.PASS:
        yield f"{ended(facts['ending'], facts['ended_after_s'])}: {quoted(facts['log_lines'])}"
    if "prediction" in facts:
        yield f"predicted before the start, not judged: {facts['prediction']}"


def ended(ending: str, after_s: float) -> str:
    """How and when an engine ended before it was ready."""
    return f"{ending}, {after_s:.1f} s after its start"


def quoted(lines: Sequence[str]) -> str:
    """Lines of a log, each cut to a length that a message can show."""
    return " | ".join(f"“{line if len(line) <= SHOWN_LINE else line[:SHOWN_LINE] + '…'}”" for line in lines)


def why_failed(reasons: str | None) -> str:
    """Reasons of failed requests; "" for a file that was written without them."""
    return "" if reasons is None else f" ({reasons})"


def _of_failures(result: CheckResult) -> Iterator[str]:
    facts = result.numbers
    if "failed_requests" in facts and not (result.cause and result.cause.names_failures):
        yield f"{number(facts['failed_requests'], 'failed request')} counted as infinitely slow" + why_failed(
            facts.get("failure_reasons"))
    elif "failure_reasons" in facts and result.verdict is not Verdict.FAIL:
        yield f"failures: {facts['failure_reasons']}"


def _qualifications(result: CheckResult) -> Iterator[str]:
    facts = result.numbers
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
    yield from _notes_on_slo(result)
    if "unseen_gpu" in facts:
        yield f"telemetry of the declared {facts['unseen_gpu']} not seen"
    if result.verdict is Verdict.PASS and "stored_runs" in facts:
        yield _detectable(result)
    if "gpu_difference" in facts:
        yield f"difference between the GPUs {change(result, facts['gpu_difference'])}, removed"
    if "reference" in facts and result.verdict is not Verdict.FAIL:
        yield f"smallest detectable change {change(result, facts['smallest_detectable'])}"
    if compared := builds_text(result):
        yield compared


def _notes_on_search(result: CheckResult) -> Iterator[str]:
    if result.metric in SEARCHED_RATES:
        yield "each run begins with an empty queue"
    for name, side in (("proven_rate", "within"), ("refuted_rate", "over")):
        if name in result.numbers:
            yield f"{result.numbers[name]:.4g}/s proven to be {side} the SLO"  # type: ignore[literal-required]


def _notes_on_slo(result: CheckResult) -> Iterator[str]:
    facts = result.numbers
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
        yield f"error of {100 * SLO_ALPHA:g} % shared by {number(facts['looks'], 'look')}"
    if "nothing_counted" in facts and result.cause is None:
        yield facts["nothing_counted"]
    if facts.get("hardware_bound_unknown"):
        yield "no hardware bound known"


def builds_text(result: CheckResult) -> str:
    """Which builds and hosts a comparison with a baseline crosses; "" where host and build are stored.

    "vLLM 0.26.0 → 0.32.0; its defaults changed: max_num_batched_tokens 8192 → 16384".
    """
    facts = result.numbers
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
    hosts = [*(["this host"] if facts["host_stored"] else []), *([number(others, "other host")] if others else [])]
    versions = f"{_engine(facts)} {' and '.join(facts['stored_versions'])}"
    sessions = number(facts["compared_sessions"], "stored session")
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
    """The changed defaults, or the changed build if every default is equal, and what the new version sets otherwise."""
    changes = facts["build_changes"]
    defaults = {name: values for name, values in changes.items() if is_default(name)}
    text = f"changed {_set_by(facts)}, {_changes(defaults)}" if defaults else f"the build, {_build_text(facts)}"
    return text + "".join(defaults_of_versions(facts["engine"], changes.get(VERSION)))


def build_change_text(result: CheckResult) -> str:
    """What changed in the build since the baseline, and what the new version sets otherwise; "" for the same build."""
    facts = result.numbers
    if "build_changes" not in facts:
        return ""
    return _build_text(facts) + "".join(defaults_of_versions(facts["engine"], facts["build_changes"].get(VERSION)))


def defaults_of_versions(engine: str, versions: Sequence[str | None] | None) -> Iterator[str]:
    """Defaults that differ between the last two versions, by the stored releases; nothing without such releases."""
    older, newer = (build_of(engine, version) for version in (versions or [None, None])[-2:])
    if older is None or newer is None or not (found := changed_defaults(older, newer)):
        return
    suspects = sorted((each for each in found if SPEED.search(each.python_name) and each.section == "flags"),
                      key=lambda each: ("." in each.name, each.kind != DEFAULT))
    shown = ", ".join(f"{each.python_name} {each.before} → {each.after}" for each in suspects[:SHOWN_DEFAULTS])
    yield f"; {newer.version} has {number(len(found), 'other default')} than {older.version}"
    yield f", among them {shown}" if shown else ""
    yield f" (all: llmperf engine-changes {engine} {older.version} {newer.version})"


def _set_by(facts: Facts) -> str:
    """"defaults" for a started server; "settings" for an endpoint, whose flags only its operator knows."""
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
        return number(facts["starts"], "server start")
    runs = number(facts["runs"], "run")
    if facts.get("seeds", facts["runs"]) < facts["runs"]:
        runs += f" of {number(facts['seeds'], 'seed')}"
    starts = facts.get("starts", 1)
    return f"{runs} on {'one server start' if starts == 1 else f'{starts} server starts'}"


def _of_starts(facts: Facts) -> str:
    if "start_sd" not in facts:
        return "on the same server start"
    starts = f"on {facts['starts_a']} + {facts['starts_b']}"
    if facts.get("replicas_seen"):
        return f"{starts} replicas, with {_start_sd(facts)}"
    return f"{starts} server starts, provisional, with {_start_sd(facts)}"


def _start_sd(facts: Facts) -> str:
    between = "replica-to-replica" if facts.get("replicas_seen") else "start-to-start"
    return f"a {between} sd of {100 * facts['start_sd']:.2g} % ({facts['start_sd_source']})"


def _sessions(facts: Facts) -> str:
    if facts["stored_sessions"] == 1:
        return (f"one session (provisional: assumed spread between sessions {100 * facts['session_sd']:.1f} %, "
                f"{facts['session_sd_source']})")
    return f"{facts['stored_sessions']} sessions"


def _detectable(result: CheckResult) -> str:
    facts = result.numbers
    limits = until(facts.get("deciding_runs"), facts.get("deciding_sessions"))
    if "smallest_detectable" not in facts:
        return f"no regression fails {limits}"
    smaller = f", and no smaller regression fails {limits}" if limits else ""
    return f"smallest detectable change {change(result, facts['smallest_detectable'])}{smaller}"


def until(runs: int | None, sessions: int | None) -> str:
    """The range of runs and stored sessions in which not every regression can fail."""
    of_runs = "" if runs is None else f"before {runs} runs"
    return " ".join(filter(None, (of_runs, "" if sessions is None else f"against fewer than {sessions} sessions")))


def change(result: CheckResult, value: float) -> str:
    """A change in the unit of the result."""
    return (result.unit or Unit.CHANGE).show(value)


def number(count: float, noun: str) -> str:
    """"1 run", "3 runs"."""
    return f"{count:.0f} {noun}{'' if count == 1 else 's'}"
