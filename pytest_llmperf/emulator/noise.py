"""Random factors on the step time: noise, stalls, throttling.

Each factor is a function of a seed, the run and the number of the step. So a fast-forward over many steps gets exactly
the factors of the single steps.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import accumulate
from math import exp, sqrt

import numpy as np
import numpy.typing as npt

from pytest_llmperf.emulator.faults import Faults
from pytest_llmperf.emulator.quantities import UsageError, duration_s, fraction

_BLOCK = 4096  # steps drawn together; the autocorrelation starts afresh at each block
_SESSION, _RUN, _STEP, _STALL, _GPU = range(5)  # streams of one seed


@dataclass(frozen=True, slots=True)
class Noise:
    """Standard deviations of the logarithm of step times, and the slow time after a start.

    Args:
        session: sd of the factor that holds for the life of the process.
        run: sd of the factor of each run.
        step: sd between the steps of a run.
        ar: autocorrelation of successive steps.
        age: relative increase of the step time in runs that begin before the server is `age_s` seconds old.
        gpu: sd between the GPU sets of a host.
        seed: equal seeds give equal noise.
        gpu_seed: equal seeds give the factor of the same GPU set.
    """

    session: float = 0.0
    run: float = 0.0
    step: float = 0.0
    ar: float = 0.0
    age: float = 0.0
    age_s: float = 0.0
    gpu: float = 0.0
    seed: int = 0
    gpu_seed: int = 0


def parse_noise(text: str, seed: int, gpu_seed: int = 0) -> Noise:
    """Read e.g. "session=0.3%,run=0.5%,step=1%,ar=0.6,age=4%:120s,gpu=1%". Components without a value are 0; "none" has
    none.

    Raises:
        UsageError: the text is not such a list.
    """
    names = [field.name for field in fields(Noise) if field.name not in ("seed", "age_s", "gpu_seed")]
    values: dict[str, float] = {}
    for part in filter(None, "" if text == "none" else text.split(",")):
        name, equals, value = part.partition("=")
        if name not in names or not equals:
            raise UsageError(f"--noise {text}: {part!r} is none of {', '.join(f'{n}=…' for n in names)}.")
        if name == "age":
            value, _, length = value.partition(":")
            values["age_s"] = duration_s(length, f"--noise {part}")
        values[name] = fraction(value, f"--noise {part}", least=0.0, most=0.999)
    return Noise(**values, seed=seed, gpu_seed=gpu_seed)


class Disturbance:
    """Factors on step times, and delays between steps, as the noise and the faults say.

    Attributes:
        leaked_blocks: KV blocks that each finished request keeps for ever (a planted leak); 0 in health.
    """

    def __init__(self, noise: Noise | None = None, faults: Faults | None = None) -> None:
        self._noise = noise or Noise()
        self._faults = faults or Faults()
        self._session = self._drawn(_SESSION, 0, self._noise.session)
        self._session *= self._drawn(_GPU, 0, self._noise.gpu)
        self._runs = 0
        self._run = self._drawn(_RUN, 0, self._noise.run)
        self._age = self._aged(0.0)
        self._blocks = lru_cache(maxsize=8)(self._step_noise)
        self._stalls = lru_cache(maxsize=8)(self._stall_block)
        self.leaked_blocks = self._faults.leaked_blocks

    def begin_run(self, age_s: float = 0.0) -> None:
        """Draw a new factor for the run of a server of this age in seconds."""
        self._runs += 1
        self._age = self._aged(age_s)
        self._run = self._drawn(_RUN, self._runs, self._noise.run)

    def factors(self, first_step: int, count: int) -> npt.NDArray[np.float64]:
        """What multiplies the durations of `count` steps from number `first_step` on."""
        constant = self._session * self._run * self._age * (1.0 + self._faults.step_time)
        values = np.full(count, constant)
        if self._noise.step:
            values *= np.concatenate([self._blocks(block)[part] for block, part in _parts(first_step, count)])
        if self._faults.throttle:
            ramp = np.minimum(1.0, np.arange(first_step, first_step + count) / self._faults.throttle_steps)
            values *= 1.0 + self._faults.throttle * ramp
        return values

    def delays_s(self, first_step: int, count: int) -> npt.NDArray[np.float64]:
        """Seconds that the scheduler stalls before each of those steps."""
        if not self._faults.stalls:
            return np.zeros(count)
        return np.concatenate([self._stalls(block)[part] for block, part in _parts(first_step, count)])

    def _aged(self, age_s: float) -> float:
        return 1.0 + self._noise.age if age_s < self._noise.age_s else 1.0

    def _drawn(self, stream: int, index: int, sigma: float) -> float:
        if not sigma:
            return 1.0
        return exp(sigma * float(self._random(stream, index).standard_normal()) - sigma * sigma / 2)

    def _step_noise(self, block: int) -> npt.NDArray[np.float64]:
        normal = self._random(_STEP, block).standard_normal(_BLOCK)
        ar, sigma = self._noise.ar, self._noise.step
        normal[1:] *= sqrt(1.0 - ar * ar)
        walk = np.array(list(accumulate(normal.tolist(), lambda last, shock: ar * last + shock)))
        return np.exp(sigma * walk - sigma * sigma / 2)

    def _stall_block(self, block: int) -> npt.NDArray[np.float64]:
        hit = self._random(_STALL, block).random(_BLOCK) < self._faults.stalls
        return np.where(hit, self._faults.stall_s, 0.0)

    def _random(self, stream: int, index: int) -> np.random.Generator:
        seed = self._noise.gpu_seed if stream == _GPU else self._noise.seed
        return np.random.default_rng((seed, stream, index))


def _parts(first: int, count: int) -> list[tuple[int, slice]]:
    """The blocks that hold steps first … first + count − 1, and which of their steps those are."""
    parts = []
    end = first + count
    for block in range(first // _BLOCK, (end + _BLOCK - 1) // _BLOCK):
        start = block * _BLOCK
        parts.append((block, slice(max(first - start, 0), min(end - start, _BLOCK))))
    return parts
