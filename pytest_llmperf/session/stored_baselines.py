"""The stored baselines as a session sees them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache, cached_property
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
    """The stored baselines as a session sees them.

    `of` gives the baselines of a hardware kind. Their files are read once, when first needed.
    """

    def __init__(self, store: Store, host: str, rules: FieldRules) -> None:
        self.of = cache(lambda kind: BaselinesOfKind(store, kind, host, rules))


class BaselinesOfKind:
    """The stored baselines of one hardware kind, for a session on this host."""

    def __init__(self, store: Store, kind: str, host: str, rules: FieldRules) -> None:
        self._store = store
        self._kind = kind
        self._host = host
        self._rules = rules
        self._suite = cache(self._suite_on)
        self._noisiest = cache(self._noisiest_test)

    def find(self, test: str, name: str) -> StoredMeasurement | None:
        """The stored measurement of that name.

        Raises:
            BaselineError: its file cannot be read or believed.
        """
        baseline = self.of_test(test)
        return None if baseline is None else baseline.measurements.get(name)

    def of_test(self, test: str) -> Baseline | None:
        """The baseline of a test; None without a baseline.

        Raises:
            BaselineError: the baseline file is unreadable or invalid.
        """
        baseline = self._files.get(baseline_path(test, self._kind))
        if isinstance(baseline, BaselineError):
            raise baseline
        return self._store.owned(baseline, test, self._kind)

    @cached_property
    def _files(self) -> dict[str, Baseline | BaselineError]:
        return self._store.read_each(self._kind)

    @cached_property
    def _measurements(self) -> list[StoredMeasurement]:
        """All stored measurements for estimates of noise. A file that cannot be read is left out."""
        with suppress(BaselineError):
            return _measurements(readable(self._files))
        return []

    def run_sd(self, test: str) -> float | None:
        """Standard deviation between the runs of a test within one session: see `stored_run_sd`.

        A test without a stored baseline gets the median over all tests of this hardware kind that have one. None: no
        test of this kind has one. An unreadable baseline file is skipped here; a comparison with that file reports the
        error.
        """
        with suppress(BaselineError):
            baseline = self.of_test(test)
            if baseline is not None and (test_sds := _run_sds(baseline.measurements.values())):
                return max(test_sds)
        return self._median_run_sd

    @cached_property
    def _median_run_sd(self) -> float | None:
        run_sds = _run_sds(self._measurements)
        return median(run_sds) if run_sds else None

    def start_sd(self, test: str, metric: str, server: str) -> StartSd | None:
        """Upper bound of the between-start sd from stored sessions, see `stored_start_sd`.

        The stored sessions of the test itself come first. A test with too few stored sessions takes the largest sd of
        all tests of its hardware kind that have this metric as a primary metric. Unreadable files are ignored here.

        Args:
            test, metric: test id and metric.
            server: hardware kind of the machine that runs the server.
        """
        with suppress(BaselineError):
            baseline = self.of_test(test)
            sd = None if baseline is None else noisiest(baseline.measurements.values(), metric, server, "of this test")
            if sd is not None:
                return sd
        return self._noisiest(metric, server)

    def _noisiest_test(self, metric: str, server: str) -> StartSd | None:
        with_metric = [measurement for measurement in self._measurements if metric in measurement.primaries]
        return noisiest(with_metric, metric, server, f"of the noisiest test on {self._kind}")

    def terms(self, primaries: tuple[str, ...], margins: Mapping[str, Margins], server: str = "") -> ComparisonTerms:
        """How a measurement of this kind is compared.

        Args:
            primaries, margins: as of `ComparisonTerms`.
            server: hardware kind of the machine that serves, for noise and margins; "": the same kind.
        """
        hardware = server or self._kind
        return ComparisonTerms(primaries, margins, self._suite_primaries, hardware, self._host, self._rules,
                               self._suite(hardware))

    @cached_property
    def _suite_primaries(self) -> int:
        return sum(len(measurement.primaries) for measurement in _measurements(believed(self._files)))

    def _suite_on(self, hardware: str) -> SuiteSpread:
        comparable = (comparable_sessions(each, self._rules) for each in _measurements(believed(self._files)))
        return suite_spread(comparable, hardware, self._host)


def _measurements(baselines: Mapping[str, Baseline]) -> list[StoredMeasurement]:
    return [measurement for baseline in baselines.values() for measurement in baseline.measurements.values()]


def _run_sds(measurements: Iterable[StoredMeasurement]) -> list[float]:
    run_sds = map(stored_run_sd, measurements)
    return [value for value in run_sds if value is not None]
