"""The stored baselines as a session sees them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from statistics import median

from pytest_llmperf.baseline.paths import baseline_path
from pytest_llmperf.baseline.store import Store, believed, readable
from pytest_llmperf.errors import BaselineError
from pytest_llmperf.judging.baseline_comparison import ComparisonTerms
from pytest_llmperf.judging.start_spread import noisiest
from pytest_llmperf.judging.steadiness import stored_run_sd
from pytest_llmperf.results.baseline import Baseline, StoredMeasurement
from pytest_llmperf.results.conditions import FieldRules, comparable_sessions
from pytest_llmperf.results.session_spread import suite_spread
from pytest_llmperf.stats.priors import Margins, SuiteSpread
from pytest_llmperf.stats.ratio import StartSd


class Baselines:
    """The stored baselines as a session sees them: the files of a hardware kind are read once, when first needed."""

    def __init__(self, store: Store, host: str, rules: FieldRules) -> None:
        self.store = store
        self.host = host
        self.rules = rules
        self._by_kind: dict[str, dict[str, Baseline | BaselineError]] = {}
        self._primaries: dict[str, int] = {}
        self._suites: dict[tuple[str, str], SuiteSpread] = {}
        self._run_sds: dict[str, list[float]] = {}
        self._start_sds: dict[tuple[str, str], StartSd | None] = {}

    def find(self, test: str, kind: str, name: str) -> StoredMeasurement | None:
        """The stored measurement of that name.

        Raises:
            BaselineError: its file cannot be read or believed.
        """
        baseline = self.of_test(test, kind)
        return None if baseline is None else baseline.measurements.get(name)

    def of_test(self, test: str, kind: str) -> Baseline | None:
        """The baseline of a test; None without a baseline.

        Raises:
            BaselineError: the baseline file is unreadable or invalid.
        """
        baseline = self._of_kind(kind).get(baseline_path(test, kind))
        if isinstance(baseline, BaselineError):
            raise baseline
        return self.store.owned(baseline, test, kind)

    def _of_kind(self, kind: str) -> dict[str, Baseline | BaselineError]:
        if kind not in self._by_kind:
            self._by_kind[kind] = self.store.read_each(kind)
        return self._by_kind[kind]

    def _readable(self, kind: str) -> list[Baseline]:
        """Baselines of a kind for estimates of noise, where a file that cannot be read is left out."""
        with suppress(BaselineError):
            return list(readable(self._of_kind(kind)).values())
        return []

    def run_sd(self, test: str, kind: str) -> float | None:
        """Standard deviation between the runs of a test within one session: see `stored_run_sd`.

        A test without a stored baseline gets the median over all tests of this hardware kind that have one. None: no
        test of this kind has one. An unreadable baseline file is skipped here; a comparison with that file reports the
        error.
        """
        with suppress(BaselineError):
            baseline = self.of_test(test, kind)
            if baseline is not None and (test_sds := _run_sds(baseline)):
                return max(test_sds)
        if kind not in self._run_sds:
            self._run_sds[kind] = [run_sd for baseline in self._readable(kind) for run_sd in _run_sds(baseline)]
        others = self._run_sds[kind]
        return median(others) if others else None

    def start_sd(self, test: str, kind: str, metric: str, server: str) -> StartSd | None:
        """Upper bound of the between-start sd from stored sessions, see `stored_start_sd`.

        The stored sessions of the test itself come first. A test with too few stored sessions takes the largest sd of
        all tests of its hardware kind that have this metric as a primary metric. Unreadable files are ignored here.

        Args:
            test, kind, metric: test id, hardware kind and metric.
            server: hardware kind of the machine that runs the server.
        """
        with suppress(BaselineError):
            baseline = self.of_test(test, kind)
            sd = None if baseline is None else noisiest(baseline.measurements.values(), metric, server, "of this test")
            if sd is not None:
                return sd
        if (kind, metric) not in self._start_sds:
            others = [
                measurement
                for baseline in self._readable(kind)
                for measurement in baseline.measurements.values()
                if metric in measurement.primaries
            ]
            self._start_sds[kind, metric] = noisiest(others, metric, server, f"of the noisiest test on {kind}")
        return self._start_sds[kind, metric]

    def terms(
        self, kind: str, primaries: tuple[str, ...], margins: Mapping[str, Margins], server: str = ""
    ) -> ComparisonTerms:
        """How a measurement of this kind is compared.

        Args:
            kind: that names the folder.
            primaries, margins: as of `ComparisonTerms`.
            server: hardware kind of the machine that serves, for noise and margins; "": the same kind.
        """
        hardware = server or kind
        if (kind, hardware) not in self._suites:
            stored = [
                measurement for each in believed(self._of_kind(kind)).values()
                for measurement in each.measurements.values()
            ]
            self._primaries[kind] = sum(len(measurement.primaries) for measurement in stored)
            comparable = (comparable_sessions(measurement, self.rules) for measurement in stored)
            self._suites[kind, hardware] = suite_spread(comparable, hardware, self.host)
        return ComparisonTerms(primaries, margins, self._primaries[kind], hardware, self.host, self.rules,
                               self._suites[kind, hardware])


def _run_sds(baseline: Baseline) -> list[float]:
    run_sds = (stored_run_sd(measurement) for measurement in baseline.measurements.values())
    return [value for value in run_sds if value is not None]
