"""The highest request rate that an engine serves within its SLOs, as a measurement that can be checked and claimed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from statistics import fmean

from pytest_llmperf.clock import seconds
from pytest_llmperf.engines.server import Server
from pytest_llmperf.errors import LoadError, RunInvalid, SpecError
from pytest_llmperf.judging.claim_judge import invalid_results
from pytest_llmperf.judging.requirements import judge_slo
from pytest_llmperf.judging.sample import unverified, values_of
from pytest_llmperf.judging.validity import judged_by_requirements
from pytest_llmperf.metrics import measure
from pytest_llmperf.metrics.failed_as_infinite import sample_with_failures_ms
from pytest_llmperf.metrics.registry import find
from pytest_llmperf.metrics.summary import statistic
from pytest_llmperf.model.engine import EngineSpec
from pytest_llmperf.model.record import RunRecords
from pytest_llmperf.model.status import Note, SearchRest
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.check import CheckResult, worst
from pytest_llmperf.results.measurement import Measurement, Run, failures_text, mean_of_runs
from pytest_llmperf.results.sentences import reason_text
from pytest_llmperf.session.arguments import texts_of
from pytest_llmperf.session.bisection import (
    FACTOR,
    SearchResult,
    TriedRate,
    bracket_of,
    halvings,
    quick_beginning,
    search_rate,
)
from pytest_llmperf.session.executions import Execution
from pytest_llmperf.session.progress import RunProgress
from pytest_llmperf.session.replay import Watch
from pytest_llmperf.session.resumption import (
    RATE,
    RATE_HOST,
    RATE_SIDE,
    RATE_VERDICT,
    SEARCH,
    VALID_RUNS,
    take_rate,
)
from pytest_llmperf.session.series import Series, Treatment
from pytest_llmperf.slo.model import Slo
from pytest_llmperf.slo.parse import parse_slo
from pytest_llmperf.stats.decision import SLO_ALPHA
from pytest_llmperf.workload import Workload
from pytest_llmperf.workload.arguments import boolean, number

METRIC, CONVERSATIONS = "max_rate", "max_conversation_rate"
RUNS_PER_LOOK = 2
# A rate that stays open is looked at three times at most (in a quick search twice). Its looks share its error.
SHARES_OF_LOOKS = (0.5, 0.25, 0.25)
SHARES_OF_QUICK_LOOKS = (0.5, 0.5)
CLEAR = 0.8  # confidence that spares a quick search the second run at a rate: the rate is clear and not proven
SEEDS_PER_SEARCH = 100
PRECISION = 0.04
COOLDOWN_S, QUICK_COOLDOWN_S = 5.0, 1.0
SHOWN = ("ttft_p50", "ttft_p99", "tpot_p50", "itl_p99", "e2el_p50")
OVERLOADED = Treatment(may_preempt=True)
LASTING = 20  # answers' times: of a load that is over sooner, an overloaded server's queue shows little
LEAST_PRECISION = 0.001  # nobody measures a rate more exactly


@dataclass(frozen=True, slots=True)
class SearchTerms:
    """The SLOs and the precision of a search.

    Args:
        slos: SLOs that the resulting rate must meet.
        precision: largest relative difference between the highest rate within the SLOs and the lowest rate over them.
        cooldown_s: pause between two rates, in seconds.
        quick: whether a rate is judged after one run, and after a second run if the rate is open. See `Perf.max_rate`.
        to_beat: rate of another setting in requests/s. The search begins there, and ends as soon as it is proven that
            the engine does not serve this rate.
    """

    slos: tuple[Slo, ...]
    precision: float = PRECISION
    cooldown_s: float = COOLDOWN_S
    quick: bool = False
    to_beat: float | None = None

    @property
    def runs_per_look(self) -> int:
        """Number of runs before each look at a rate."""
        return 1 if self.quick else RUNS_PER_LOOK

    @property
    def confidence_of_looks(self) -> tuple[float, ...]:
        """Confidence of each look at a rate: all rates near the limit share one error of 5 %.

        Those are the two rates of a bracket, one rate per bisection step, and the rate that a check asks for.
        """
        rates_near_limit = 3 + halvings(1.0, FACTOR, self.precision)
        shares = SHARES_OF_QUICK_LOOKS if self.quick else SHARES_OF_LOOKS
        return tuple(1 - SLO_ALPHA / rates_near_limit * share for share in shares)

    @property
    def pause_s(self) -> float:
        """Pause between two rates, in seconds."""
        return min(self.cooldown_s, QUICK_COOLDOWN_S) if self.quick else self.cooldown_s

    @property
    def most_runs(self) -> int:
        """Largest number of runs at one rate."""
        return self.runs_per_look * len(self.confidence_of_looks)

    @property
    def named(self) -> set[str]:
        """The metrics that the SLOs limit."""
        return {name for slo in self.slos for name in slo.named}

    def __str__(self) -> str:
        options = ", quick" if self.quick else ""
        options += "" if self.to_beat is None else f", to_beat={self.to_beat:g}"
        return f"max_rate({', '.join(map(str, self.slos))}, precision={self.precision:g}{options})"


def search_terms(slo: str | Sequence[str], precision: float = PRECISION, cooldown_s: float = COOLDOWN_S, *,
                 quick: bool = False, to_beat: float | None = None) -> SearchTerms:
    """Read the SLOs now, so that a typo costs no server start.

    Raises:
        SloError: a text cannot be read.
        SpecError: there is no SLO, or the precision is invalid.
    """
    if not (texts := texts_of(slo, "slo")):
        raise SpecError('max_rate: say within which SLO: slo="ttft_p99 <= 500ms".')
    if not LEAST_PRECISION <= number("max_rate", "precision", precision) <= 1:
        raise SpecError(f"max_rate: precision must be a share from {LEAST_PRECISION:g} to 1, got {precision:g}.")
    number("max_rate", "cooldown_s", cooldown_s, least=0)
    boolean("max_rate", "quick", quick)
    if to_beat is not None:
        number("max_rate", "to_beat", to_beat, above=0)
    return SearchTerms(tuple(parse_slo(text) for text in texts), precision, cooldown_s, quick, to_beat)


class RateSeries(Series):
    """Runs at one rate of a search: evidence for its result, and nothing to compare with anything."""

    search = ""  # the workload and terms of the search
    rest: Callable[[int], SearchRest | None] = staticmethod(lambda _runs: None)  # of the search after so many runs
    problems: Callable[[Measurement], Sequence[CheckResult]] = staticmethod(lambda _runs: ())  # that make runs invalid

    def begun(self, server: Server) -> Measurement:
        """The measurement before its first run."""
        nothing = super().begun(server)
        rate = self.workload.rate * self.workload.requests_per_arrival
        of_rate = {RATE: f"{rate:g}/s", SEARCH: self.search, RATE_HOST: self.session.host}
        return replace(nothing, conditions={**nothing.conditions, **of_rate})

    def watch(self, run: int, runs: int) -> Watch:
        """Counts the runs of all looks at this rate."""
        earlier = len(self.finished.runs) - run + 1
        return self._shown(RunProgress(earlier + run, earlier + runs, self.label, self.rest(earlier + runs)))

    def take_over(self, stored: Measurement | None, server: Server) -> None:
        """Go on from the stored runs of this rate, with the seeds that follow. The stored runs count as valid."""
        if stored is None or RATE_VERDICT in stored.conditions:
            self.measurement = stored
            return
        own = self._with_own_runs(stored, "" if server.text_counter is None else server.text_counter.name)
        self.follow((), number=self.number, first_seed=own.runs[0].seed)
        self.measurement = replace(
            self.begun(server), conditions=own.conditions, runs=own.runs, metrics=own.metrics)

    def keep(self, measured: Measurement, run: Run, *, complete: bool) -> Measurement:
        """Store the run, and whether it is valid: a resumed search takes over the first runs that are valid."""
        metrics = measure(run.records, run.counters, run.tokenizer)
        valid = int(measured.conditions.get(VALID_RUNS, "0"))
        if valid == len(measured.runs) and not self.problems(replace(measured, runs=(run,), metrics=(metrics,))):
            measured = replace(measured, conditions={**measured.conditions, VALID_RUNS: str(valid + 1)})
        return super().keep(measured, run, complete=complete)

    def judged(self, point: TriedRate | None) -> None:
        """Store the answer of the search about this rate, which a resumed search takes over.

        Args:
            point: the answer. None: the runs are invalid as a group, so no resumed search takes over such runs.
        """
        kept = {name: value for name, value in self.finished.conditions.items() if name != VALID_RUNS}
        if point is not None:
            kept |= {RATE_VERDICT: point.verdict.value, RATE_SIDE: "within" if point.within else "over"}
        self.measurement = replace(self.finished, conditions=kept)
        self.execution.write()


class Capacity(Series):
    """A series of searches; each run is a search. A search has seeds of its own, equal at all rates and on all engines.

    Args:
        execution, engine, workload, side, label, beside: as in `Series`. The search first tries the rate of the
            workload. All rates count requests; a rate of conversations is multiplied by their turns.
        terms: terms of the search.
    """

    execution: Execution

    def __init__(
        self, execution: Execution, engine: Server | EngineSpec, workload: Workload, terms: SearchTerms, *,
        side: str = "", label: str = "", beside: tuple[EngineSpec, ...] = (),
    ) -> None:
        super().__init__(execution, engine, workload, OVERLOADED, side=side, label=label, beside=beside)
        self.terms = terms
        self.key = (*self.key, str(terms))
        self._searched = f"{workload}, {terms}"
        self._of_claim: dict[tuple[int, int | None], Run] = {}
        self.results: list[SearchResult] = []
        self.unfinished: list[TriedRate] = []  # what the search tried that goes on, or ended before its answer
        self._per_arrival = workload.requests_per_arrival
        self._start = terms.to_beat or workload.rate * self._per_arrival
        self._arrivals = sum(request.after is None for request in workload.requests())
        self._tried_rates = self._measured_rates = 0
        self._overhead_s = 0.0  # of a run at the last rate, beside its schedule
        self._short_load_warnings: dict[float, str] = {}  # rate → why what was sent there is hardly a lasting load

    @property
    def shown(self) -> list[str]:
        """The metrics to show for each tried rate: the metrics of the SLOs, then median latencies."""
        limited = [slo.metric for slo in self.terms.slos if find(slo.metric).limited is False]
        return list(dict.fromkeys([*limited, *SHOWN]))

    @property
    def several_at_once(self) -> bool:
        """Always False, because each search chooses its next rate by itself."""
        return False

    @property
    def repeatable(self) -> bool:
        """Always True, because each search sends new prompts if the cache is not emptied."""
        return True

    def twin(self, engine: EngineSpec, label: str, beside: tuple[EngineSpec, ...]) -> Capacity:
        """Searches of the same rates on another specification; see `Series.twin`."""
        return Capacity(self.execution, engine, self.workload, self.terms, label=label, beside=beside)

    def extend(
        self, runs: int, *, seeds: int | None = None, block: int | None = None, steady: bool = False
    ) -> Measurement:
        """Run `runs` further searches; see `Series.extend`.

        Raises:
            LoadError: no tried rate meets the SLO, or a run at a tried rate is invalid.
        """
        server = self.server(steady=steady)
        measurement = replace(self.measurement or self._continued_measurement(server), complete=False)
        stored = self._stored_searches(measurement) if self.side else {}
        for searched, seed in enumerate(self._next_seeds(measurement, runs, seeds, block)):
            run = stored.get((seed, block)) or self._search(server, seed)
            run = Run(seed, run.start_id, RunRecords(), run.counters, started_at=run.started_at,
                      execution=self.number, block=block)
            measurement = self.keep(measurement, run, complete=searched + 1 == runs)
        return measurement

    @property
    def tried(self) -> list[TriedRate]:
        """The rates of all searches, in order."""
        return [*(point for result in self.results for point in result.points), *self.unfinished]

    @property
    def stored_block(self) -> int | None:
        """First block of this side in the interrupted command; None if the claim begins now."""
        return next((each.runs[0].block for each in self.execution.stored
                     if (each.side, each.workload) == (self.side, self._searched)), None)

    def _stored_searches(self, begun: Measurement) -> dict[tuple[int, int | None], Run]:
        """The searches of an interrupted claim on this host, by seed and block."""
        if not begun.runs:
            here = {**begun.conditions, RATE_HOST: self.session.host}
            side = take_rate(self.execution.stored, replace(begun, conditions=here))
            self._of_claim = {} if side is None else {(run.seed, run.block): run for run in side.runs}
        return self._of_claim

    def _search(self, server: Server, seed: int) -> Run:
        start, first_factor = self._beginning(seed)
        result = search_rate(partial(self._judge, seed), start, self.terms.precision, first_factor=first_factor,
                             to_beat=self.terms.to_beat)
        self.results.append(result)
        self.unfinished.clear()
        if result.highest_within in self._short_load_warnings:
            self.session.notify(Note(self._short_load_warnings[result.highest_within]))
        return Run(seed, server.start_id, RunRecords(), self._counters(result),
                   started_at=self.session.now().isoformat(timespec="seconds"))

    def settle(self, rate: float) -> Measurement:
        """Try one more rate in each search that neither proved nor refuted the rate.

        Searches with different seeds are judged by an interval over the found rates, so no rate is tried for them.

        Raises:
            InfrastructureError: the server or the load generator failed.
        """
        measurement = self.finished
        if len({run.seed for run in measurement.runs}) > 1 or all(result.decides(rate) for result in self.results):
            return measurement
        runs, metrics = list(measurement.runs), list(measurement.metrics)
        plain = len(runs) - len(self.results)
        for place, result in enumerate(self.results):
            if not result.decides(rate):
                run = runs[plain + place]
                self.results[place] = replace(result, points=(*result.points, self._judge(run.seed, rate)))
                runs[plain + place] = replace(run, counters=self._counters(self.results[place]))
                metrics[plain + place] = runs[plain + place].metrics
                self.unfinished.clear()
        self.measurement = replace(measurement, runs=tuple(runs), metrics=tuple(metrics))
        self.execution.write()
        return self.measurement

    def _counters(self, result: SearchResult) -> dict[str, float | None]:
        rates = {"": self._rate(result), "_beyond": result.lowest_over, "_proven": result.proven,
                 "_refuted": result.refuted}
        counters = {f"{METRIC}{suffix}": rate for suffix, rate in rates.items()}
        if self._per_arrival > 1:
            counters |= {f"{CONVERSATIONS}{suffix}": rate and rate / self._per_arrival
                         for suffix, rate in rates.items()}
        return counters

    def _beginning(self, seed: int) -> tuple[float, float]:
        """The first rate of a search, and its ratio to the second rate."""
        if not self.terms.quick or self.terms.to_beat is not None:
            return self._start, FACTOR
        return quick_beginning(self._start, self.terms.precision, seed)

    def _judge(self, seed: int, rate: float) -> TriedRate:
        """Is this rate within the SLOs? What stays open is sent again with other seeds.

        A quick search repeats a rate with an invalid run once.
        """
        try:
            return self._judge_once(seed, rate)
        except RunInvalid as error:
            if not self.terms.quick:
                raise
            self.session.notify(Note(f"{error} This rate is measured again."))
            return self._judge_once(seed, rate)

    def _judge_once(self, seed: int, rate: float) -> TriedRate:
        workload = self.workload.at_rate(rate / self._per_arrival, seed * SEEDS_PER_SEARCH)
        server = self.server()
        # Rates are compared on equal prompts, except on a server whose cache cannot be emptied.
        first_seed = 0 if not server.spec.is_endpoint else self._tried_rates * self.terms.most_runs
        self._tried_rates += 1
        if str(self.workload) in server.warmed_for:  # the same shapes, only more often
            server.warmed_for.add(str(workload))
        label = ", ".join(filter(None, (self.label, f"{rate:.4g}/s")))
        series = RateSeries(self.execution, self.engine, workload, OVERLOADED, label=label)
        series.search = self._searched
        series.rest = partial(self._rest, workload)
        series.follow((), number=self.number, first_seed=first_seed)
        series.problems = partial(self._problems, rate)
        series.take_over(take_rate(self.execution.stored, series.begun(server)), server)
        self.execution.series.append(series)
        stored = "" if series.measurement is None else series.measurement.conditions.get(RATE_VERDICT, "")
        verdict = Verdict(stored) if stored else self._measured_verdict(series, rate)
        point = TriedRate(rate, verdict, all(_holds(slo, series.finished) for slo in self.terms.slos),
                          {name: _measured(name, series.finished) for name in self.shown},
                          failures_text(series.finished.runs), len(series.finished.runs))
        series.judged(point)
        self.unfinished.append(point)
        self.session.notify(Note(f"{label}: {_tried_rate_text(point)}"))
        if (cause_and_remedy := _short_load_warning(series.finished, workload)) is not None:
            self._short_load_warnings[rate] = f"{label}: {cause_and_remedy}"
            if self.terms.quick and point.within and self._is_burst(series.finished, workload):
                raise LoadError(f"At {rate:.4g}/s the SLOs are met by a burst: {cause_and_remedy}")
        return point

    def _is_burst(self, measurement: Measurement, workload: Workload) -> bool:
        """Whether all requests were sent before the median answer ended, so that the load has no rate."""
        took_ms = _measured("e2el_p50", measurement)
        return took_ms is not None and self._arrivals / workload.rate < took_ms / 1e3

    def _measured_verdict(self, series: RateSeries, rate: float) -> Verdict:
        if self._measured_rates:
            self.session.clock.sleep_ns(seconds(self.terms.pause_s))
        self._measured_rates += 1
        begun_ns = self.session.clock.now_ns()
        verdict, stored = Verdict.INCONCLUSIVE, len(series.measurement.runs) if series.measurement else 0
        for look, confidence in enumerate(self.terms.confidence_of_looks, start=1):
            present = len(series.measurement.runs) if series.measurement else 0
            missing = look * self.terms.runs_per_look - present
            if missing < 0:
                continue  # an earlier command had this look, which decided nothing
            measurement = series.extend(missing) if missing else series.finished
            if errors := self._problems(rate, measurement.only(lambda run: run.requests is None)):
                series.judged(None)
                raise RunInvalid(reason_text(errors[0]))
            verdict = self._verdict(measurement, rate, confidence)
            if verdict is not Verdict.INCONCLUSIVE or self._is_clear(measurement, rate):
                break
        if runs := len(series.finished.runs) - stored:
            took_s = (self.session.clock.now_ns() - begun_ns) / 1e9
            self._overhead_s = took_s / runs - self._schedule_s(series.workload.rate)
        return verdict

    def _is_clear(self, measurement: Measurement, rate: float) -> bool:
        return self.terms.quick and self._verdict(measurement, rate, CLEAR) is not Verdict.INCONCLUSIVE

    def _rest(self, workload: Workload, runs: int) -> SearchRest | None:
        """The rest of the search after so many runs at the rate of `workload`; None before the limit is bracketed."""
        if (bracket := bracket_of(self.unfinished)) is None:
            return None
        low, high = bracket
        further = halvings(low, high, self.terms.precision) - 1
        pauses_s = further * self.terms.pause_s
        present_s = (self.terms.most_runs - runs) * self._run_s(workload.rate)
        return SearchRest(
            pauses_s + further * self.terms.runs_per_look * self._run_s(high / self._per_arrival),
            pauses_s + further * self.terms.most_runs * self._run_s(low / self._per_arrival) + present_s,
        )

    def _schedule_s(self, rate: float) -> float:
        """Seconds from the first to the last request that the schedule sends; later turns follow the answers."""
        return (self._arrivals - 1) / rate

    def _run_s(self, rate: float) -> float:
        return max(self._schedule_s(rate) + self._overhead_s, 0.0)

    def _problems(self, rate: float, measurement: Measurement) -> Sequence[CheckResult]:
        """One ERROR if runs of this command are invalid; an earlier command has judged the stored runs."""
        # Overload fails requests: they count as over the limit, and say nothing against the run.
        judged_metrics = {"error_rate", "rate_limited_rate", *judged_by_requirements(self.terms.slos)}
        return invalid_results([(f"at {rate:.4g}/s", measurement, judged_metrics)], self.session.settings)

    def _verdict(self, measurement: Measurement, rate: float, confidence: float) -> Verdict:
        starts, seeds = [str(run.start_id) for run in measurement.runs], [run.seed for run in measurement.runs]
        results = [
            judge_slo(slo, measurement.metrics, starts, seeds, confidence=confidence) for slo in self.terms.slos
        ]
        if any(result.verdict is Verdict.FAIL for result in results):
            return Verdict.FAIL  # over the limit, although an overloaded server reports less
        if worst(results) is Verdict.ERROR:
            error = next(result for result in results if result.verdict is Verdict.ERROR)
            raise LoadError(f"at {rate:.4g}/s: {reason_text(error)}")
        for slo in self.terms.slos:
            if cause := unverified(slo.named, measurement.metrics):
                raise LoadError(f"at {rate:.4g}/s nothing can be proven: {cause.reason()}. Or limit TTFT or "
                                "E2E latency.")
        return worst(results)

    def _rate(self, result: SearchResult) -> float:
        if result.highest_within is None and self.terms.to_beat is not None and result.refuted is not None:
            raise LoadError(f"Slower than the rate to beat: over the SLOs at {result.refuted:.4g}/s (proven). Try "
                            "another setting.")
        if result.highest_within is None:
            raise LoadError(
                f"{self.terms}: not even {result.points[-1].rate:.3g}/s is within the SLOs. Is the limit possible "
                "at all? Measure the workload at a low rate, such as poisson(0.1)."
            )
        return result.highest_within

    def begun(self, server: Server) -> Measurement:
        """The measurement before its first search."""
        nothing = super().begun(server)
        return replace(nothing, workload=self._searched,
                       conditions={**nothing.conditions, "search": str(self.terms)})


def _holds(slo: Slo, measurement: Measurement) -> bool:
    """Whether the measured value meets the limit; False if the value is unavailable.

    The statistic of a latency is computed over the pooled requests of all runs, with failed requests as infinitely
    slow. The mean of the runs' percentiles would be too low if the runs differ, which is common near the limit.
    """
    metric = find(slo.metric)
    if metric.family is None or metric.stat is None:
        pooled_statistic = mean_of_runs(values_of(slo, measurement.metrics))
    else:
        pooled_statistic = _measured(slo.metric, measurement)
    return pooled_statistic is not None and slo.comparison.holds(pooled_statistic, slo.limit)


def _measured(name: str, measurement: Measurement) -> float | None:
    """A metric over all runs: a latency's statistic of all requests together, of anything else the mean."""
    metric = find(name)
    if metric.family is None or metric.stat is None:
        return measurement.value(name)
    pooled = [sample for metrics in measurement.metrics for sample in sample_with_failures_ms(metrics, metric.family)]
    return statistic(pooled, metric.stat)


def _short_load_warning(measurement: Measurement, workload: Workload) -> str | None:
    """Warning if the load ended before a queue could grow; None for a long enough load.

    For conversations the rate counts the first turns only, because later turns follow the answers.
    """
    known_ms = [value for value in measurement.values("e2el_p50") if value is not None]
    took_s = fmean(known_ms) / 1e3 if known_ms else 0.0
    requests = workload.requests()
    came = sum(request.after is None for request in requests)
    enough = LASTING * took_s * workload.rate
    if came >= enough:
        return None
    what = "requests were sent" if came == len(requests) else "conversations began"
    return (f"all {came} {what} within {came / workload.rate:.2g} s, and one answer took {took_s:.2g} s: a queue had "
            f"little time to grow, and a lasting load may be too much. Send {ceil(enough)} to know.")


def _tried_rate_text(point: TriedRate) -> str:
    failed = f", failed: {point.failures}" if point.failures else ""
    if point.verdict is Verdict.INCONCLUSIVE:
        return f"{'within' if point.holds else 'over'} the SLO as measured, not proven{failed}"
    return f"{'within' if point.within else 'over'} the SLO{failed}"
