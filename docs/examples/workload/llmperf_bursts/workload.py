"""Bursts: every few seconds a number of requests at the same moment."""

from pytest_llmperf import at_times, random_tokens
from pytest_llmperf.extending import AddedWorkload


def bursts(*, size, every_s, bursts, input=512, output=64, seed=0):
    times_s = [burst * every_s for burst in range(bursts) for _ in range(size)]
    return random_tokens(input=input, output=output, arrivals=at_times(times_s), requests=size * bursts, seed=seed)


BURSTS = AddedWorkload(api=1, name="bursts", build=bursts)
