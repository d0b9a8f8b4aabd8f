"""Properties of all workloads, and the purpose of each workload."""

import hashlib
from dataclasses import replace
from itertools import combinations, pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmperf.errors import SpecError
from pytest_llmperf.model.request import Request
from pytest_llmperf.workload import (
    Workload,
    at_times,
    closed,
    constant,
    mixed,
    multi_turn,
    poisson,
    random_tokens,
    shared_prefix,
    sharegpt,
)
from pytest_llmperf.workload.base import MOST_KEPT_TOKENS
from pytest_llmperf.workload.prompts import relabelled

MANY = at_times(tuple(range(1000)))
RANDOM = random_tokens(input=(40, 200), output=(5, 9), arrivals=poisson(8), requests=20)
SHARED = shared_prefix(prefix=96, suffix=(8, 32), output=4, groups=3, arrivals=closed(4), requests=12)
TURNS = multi_turn(conversations=3, turns=4, input=(20, 40), output=30, arrivals=constant(1), think_s=0.5)
MIXED = mixed(stream={"input": 16, "output": 60, "arrivals": closed(2), "requests": 6},
              prefill={"input": 900, "output": 1, "arrivals": constant(2), "requests": 3})
WORDS = random_tokens(input=12, output=5, arrivals=poisson(8), requests=4, text=True)
ALL = {"random_tokens": RANDOM, "shared_prefix": SHARED, "multi_turn": TURNS, "mixed": MIXED, "words": WORDS}

# Taken once: (definition, content). Another definition orphans baselines; other content makes them lie.
GOLDEN = {
    str(RANDOM): ("3d6b9a5011800854", "3e29b2a44be212b7"),
    str(SHARED): ("6012f5b446a068f8", "4c64ba75045ae118"),
    str(TURNS): ("cee83a16408b9aab", "5c56c4e3e3d66d05"),
    str(MIXED): ("96070f41fc653d0b", "aa8d8448cca8ac1c"),
    str(WORDS): ("d683d88755b7a78c", "8889a31bdad9929e"),
}


def content(requests: tuple[Request, ...]) -> str:
    facts = [(r.index, r.prompt, r.output_tokens, r.prompt_tokens, r.at_ns, r.after, r.think_ns, r.tag)
             for r in requests]
    return hashlib.sha256(repr(facts).encode()).hexdigest()


@pytest.mark.parametrize("workload", ALL.values(), ids=ALL)
class TestEveryWorkload:
    def test_digest_and_requests_match_golden_values(self, workload):
        assert (workload.digest()[:16], content(workload.requests(3))[:16]) == GOLDEN[str(workload)]

    def test_requests_repeat_for_equal_seed_and_differ_between_seeds(self, workload):
        assert workload.requests(1) == workload.requests(1)
        first, second = ({str(r.prompt) for r in workload.requests(seed)} for seed in (1, 2))
        assert not first & second

    def test_requests_are_numbered_and_follow_only_earlier_requests(self, workload):
        for position, request in enumerate(workload.requests()):
            assert request.index == position
            assert request.after is None or request.after < position
            assert request.output_tokens >= 1

    def test_prompt_tokens_are_counted_or_unknown(self, workload):
        for request in workload.requests():
            if isinstance(request.prompt, str):
                assert request.prompt_tokens is None
            else:
                assert request.prompt_tokens == len(request.prompt)
                assert all(1000 <= token <= 9999 for token in request.prompt)

    def test_workload_text_evaluates_to_equal_workload(self, workload):
        again = eval(str(workload))
        assert again == workload
        assert hash(again) == hash(workload)
        assert again.digest() == workload.digest()
        assert repr(workload) == str(workload)

    def test_seed_offset_is_the_same_as_another_seed(self, workload):
        other = eval(str(workload)[:-1] + ", seed=5)")
        assert other.requests(0) == workload.requests(5)
        assert other.digest() != workload.digest()


class TestRandomTokens:
    def test_lengths_cover_the_range_with_both_ends(self):
        requests = random_tokens(input=(3, 5), output=(1, 2), arrivals=closed(1), requests=200).requests()
        assert {r.prompt_tokens for r in requests} == {3, 4, 5}
        assert {r.output_tokens for r in requests} == {1, 2}

    def test_streams_are_independent(self):
        """Another arrival process, output or input range leaves all else as it was."""
        base = random_tokens(input=(40, 200), output=(5, 9), arrivals=poisson(8), requests=20).requests()
        arrivals = random_tokens(input=(40, 200), output=(5, 9), arrivals=constant(8), requests=20).requests()
        outputs = random_tokens(input=(40, 200), output=7, arrivals=poisson(8), requests=20).requests()
        assert [r.prompt for r in arrivals] == [r.prompt for r in base]
        assert [r.output_tokens for r in arrivals] == [r.output_tokens for r in base]
        assert [(r.prompt, r.at_ns) for r in outputs] == [(r.prompt, r.at_ns) for r in base]
        inputs = random_tokens(input=50, output=(5, 9), arrivals=poisson(8), requests=20).requests()
        assert [(r.output_tokens, r.at_ns) for r in inputs] == [(r.output_tokens, r.at_ns) for r in base]

    def test_tokens_use_the_whole_range_about_evenly(self):
        """16-bit draws give an id 8 or 7 chances in 65,536, so a thousand ids get 21,973 or 19,226 of 180,000."""
        (request,) = random_tokens(input=180_000, output=1, arrivals=closed(1), requests=1).requests()
        counts = [0] * 9
        for token in request.prompt:
            counts[token // 1000 - 1] += 1
        assert min(counts) > 18_700
        assert max(counts) < 22_500
        assert {min(request.prompt), max(request.prompt)} == {1000, 9999}

    def test_random_prompts_share_no_prefix(self):
        assert RANDOM.expected_hit_rate(1) < 0.001
        assert RANDOM.expected_hit_rate(16) == 0.0

    def test_text_is_pronounceable_words(self):
        for request in WORDS.requests():
            words = request.prompt.split(" ")
            assert len(words) == 12
            assert all(len(w) == 5 and w[1] in "aeiou" and w[3] in "aeiou" and w.isascii() for w in words)

    def test_each_token_id_has_a_different_word(self):
        from pytest_llmperf.workload.prompts import FIRST_ID, LAST_ID, as_text

        assert len(set(as_text(tuple(range(FIRST_ID, LAST_ID + 1))).split())) == 9000


class TestSharedPrefix:
    def test_groups_share_only_prefix(self):
        prefixes = [r.prompt[:96] for r in SHARED.requests()]
        assert len(set(prefixes)) == 3
        assert prefixes[0] == prefixes[3] != prefixes[1]
        assert len({r.prompt[96:] for r in SHARED.requests()}) == 12

    def test_expected_hit_rate_counts_whole_cached_blocks(self):
        workload = shared_prefix(prefix=100, suffix=28, output=1, arrivals=closed(1), requests=10)
        assert workload.expected_hit_rate(16) == pytest.approx(9 * 96 / 1280)
        assert workload.expected_hit_rate(128) == 0.0
        two = shared_prefix(prefix=96, suffix=32, output=1, groups=2, arrivals=closed(1), requests=10)
        assert two.expected_hit_rate(16) == pytest.approx(8 * 96 / 1280)

    def test_hit_rate_of_words_is_close(self):
        words = shared_prefix(prefix=100, suffix=28, output=1, arrivals=closed(1), requests=10, text=True)
        assert words.expected_hit_rate(16) == pytest.approx(9 * 96 / 1280)


class TestMultiTurn:
    def test_history_grows_by_reply_and_message(self):
        first, second = TURNS.requests()[:2]
        assert second.prompt[: len(first.prompt)] == first.prompt
        assert len(second.prompt) >= len(first.prompt) + first.output_tokens + 20

    def test_a_turn_waits_for_the_one_before(self):
        requests = TURNS.requests()
        assert [r.after for r in requests] == [None, 0, 1, 2, None, 4, 5, 6, None, 8, 9, 10]
        assert [r.think_ns for r in requests[:2]] == [0, 500_000_000]
        assert [r.at_ns for r in requests[::4]] == [0, 1_000_000_000, 2_000_000_000]
        assert all(r.at_ns is None for r in requests if r.after is not None)

    def test_expected_hits_of_conversation_are_previous_prompts(self):
        turns = multi_turn(conversations=2, turns=3, input=32, output=16, arrivals=closed(1))
        assert turns.expected_hit_rate(16) == pytest.approx(2 * (32 + 80) / (2 * (32 + 80 + 128)))

    def test_conversations_share_no_prefix(self):
        assert len({r.prompt[:4] for r in TURNS.requests()}) == 3


class TestMixed:
    def test_is_ordered_by_time_and_tagged(self):
        requests = MIXED.requests()
        times = [r.at_ns or 0 for r in requests]
        assert times == sorted(times)
        assert {r.tag for r in requests} == {"stream", "prefill"}
        assert {r.prompt_tokens for r in requests if r.tag == "prefill"} == {900}

    def test_closed_class_of_mixed_workload_becomes_chains_of_requests(self):
        streams = [r for r in MIXED.requests() if r.tag == "stream"]
        assert MIXED.concurrency is None
        assert [r.at_ns for r in streams] == [0, 0, None, None, None, None]
        assert [r.after for r in streams[2:]] == [r.index for r in streams[:4]]

    def test_equal_classes_get_different_prompts(self):
        same = {"input": 50, "output": 1, "arrivals": poisson(1), "requests": 3}
        assert len({r.prompt for r in mixed(stream=same, prefill=same).requests()}) == 6

    def test_mixed_accepts_workload_instead_of_mapping(self):
        assert mixed(stream=RANDOM, prefill=RANDOM).stream == RANDOM


@pytest.mark.parametrize("workload", [RANDOM, SHARED, TURNS, WORDS], ids=str)
def test_equal_workload_and_seed_share_one_drawing(workload):
    first = workload.requests(3)
    assert replace(workload).requests(3) is first
    assert replace(workload, seed=1).requests(3) is not first


def test_drawn_requests_beyond_memory_limit_are_forgotten():
    workload = random_tokens(input=MOST_KEPT_TOKENS // 2, output=1, arrivals=closed(1), requests=1)
    first, second, third = (workload.requests(seed) for seed in range(3))
    assert workload.requests(1) is second
    assert workload.requests(2) is third
    assert workload.requests(0) is not first
    larger = replace(workload, input=MOST_KEPT_TOKENS + 1)
    assert larger.requests() is not larger.requests()


def test_concurrency_is_set_by_arrival_process():
    assert SHARED.concurrency == 4
    assert RANDOM.concurrency is None


@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=12), max_size=8), st.integers(1, 5))
def test_ideal_hit_rate_equals_a_search_through_earlier_prompts(prompts, block):
    from pytest_llmperf.workload.base import ideal_hit_rate

    requests = [Request(i, tuple(p), 1, len(p)) for i, p in enumerate(prompts)]
    hits = 0
    for i, prompt in enumerate(prompts):
        lengths = range(0, len(prompt), block)  # shorter than the prompt: its last token is computed
        hits += max(n for n in lengths if n == 0 or any(p[:n] == prompt[:n] for p in prompts[:i]))
    total = sum(map(len, prompts))
    assert ideal_hit_rate(requests, block) == (hits / total if total else 0.0)


ONE = {"input": 1, "output": 1, "arrivals": closed(1), "requests": 1}
TALK = {"input": 1, "output": 1, "turns": 1, "arrivals": closed(1), "conversations": 1}


@pytest.mark.parametrize(("make", "part"), [
    (lambda: random_tokens(**ONE | {"input": 0}), "input must be at least 1, got 0"),
    (lambda: random_tokens(**ONE | {"input": (5, 3)}), r"did you mean \(3, 5\)"),
    (lambda: random_tokens(**ONE | {"input": (1, 2, 3)}), "low, high"),
    (lambda: random_tokens(**ONE | {"input": 1.5}), "input must be an integer"),
    (lambda: random_tokens(**ONE | {"arrivals": 8}), "arrivals must be one of .* got 8"),
    (lambda: random_tokens(**ONE | {"requests": 0}), "requests must be at least 1"),
    (lambda: random_tokens(**ONE | {"arrivals": at_times((0, 1)), "requests": 3}),
     "3 requests need 3 arrival times, at_times has 2"),
    (lambda: random_tokens(**ONE, seed="x"), "seed"),
    (lambda: shared_prefix(prefix=0, suffix=1, output=1, arrivals=closed(1), requests=1), "prefix"),
    (lambda: shared_prefix(groups=0, suffix=1, output=1, arrivals=closed(1), requests=1), "groups"),
    (lambda: multi_turn(**TALK | {"turns": 0}), "turns"),
    (lambda: multi_turn(**TALK, think_s=-1), "think_s must be at least 0"),
    (lambda: mixed(stream={"input": 1}, prefill=RANDOM), "stream takes the arguments of random_tokens"),
    (lambda: mixed(stream=RANDOM, prefill=SHARED), "prefill must be"),
    (lambda: mixed(stream=replace(RANDOM, arrivals=poisson(8).at_most(4)), prefill=RANDOM), "of a mix has no limit"),
    (lambda: RANDOM.expected_hit_rate(0), "block_size"),
    (lambda: RANDOM.expected_hit_rate(16, "x"), "seed must be an integer, got 'x'"),
    (lambda: random_tokens(**ONE, text="no"), "random_tokens: text must be True or False, got 'no'"),
    (lambda: multi_turn(**TALK, text=None), "multi_turn: text must be True or False"),
    (lambda: shared_prefix(suffix=1, output=1, arrivals=closed(1), requests=1, text=1), "shared_prefix: text must be"),
    (lambda: sharegpt(path=None, arrivals=closed(1), requests=1),
     "path must be a text or a path, got None. Name a file that is a JSON list"),
    (lambda: sharegpt(path=["a.json"], requests=1, arrivals=closed(1)), "path must be a text or a path"),
    (lambda: random_tokens(512, 64, closed(1), 1), r"random_tokens\(512, 64, .*: name every argument of a workload: "
     r"random_tokens\(input=…, output=…, arrivals=…, requests=…"),
    (lambda: sharegpt("a.json", requests=1, arrivals=closed(1)), r"sharegpt\(path=…, arrivals=…, requests=…, seed=…\)"),
    (lambda: random_tokens(**ONE, request=3), "random_tokens: there is no argument request. Did you mean requests?"),
    (lambda: sharegpt(path="a.json", rate=1), r"no argument rate. Write sharegpt\(path=…, arrivals=…, requests=…, see"),
    (lambda: multi_turn(input=1, output=1, turns=2), "multi_turn: arrivals and conversations must be given"),
    (lambda: mixed(RANDOM, RANDOM), r"mixed\(stream=…, prefill=…, seed=…\)"),
])
def test_invalid_workload_is_refused_in_one_paragraph(make, part):
    with pytest.raises(SpecError, match=part) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_defaults_are_left_out_of_the_text():
    assert str(RANDOM) == "random_tokens(input=(40, 200), output=(5, 9), arrivals=poisson(8), requests=20)"
    assert isinstance(RANDOM, Workload)


def shared_lengths(prompts):
    """How many tokens each two prompts share at their beginning."""
    def shared(first, other):
        return next((at for at, two in enumerate(zip(first, other, strict=False)) if len(set(two)) > 1),
                    min(len(first), len(other)))

    return [shared(item, other) for item, other in combinations(prompts, 2)]


def test_relabelled_requests_share_as_much_and_repeat_no_token_sequence():
    requests = shared_prefix(prefix=100, suffix=(8, 30), output=4, groups=2, arrivals=closed(2), requests=8).requests()
    other = relabelled(requests, Random(7))
    assert [replace(request, prompt=()) for request in other] == [replace(request, prompt=()) for request in requests]
    prompts, others = ([request.prompt for request in some] for some in (requests, other))
    assert shared_lengths(others) == shared_lengths(prompts)
    pairs = {two for prompt in prompts for two in pairwise(prompt)}
    assert not pairs & {two for prompt in others for two in pairwise(prompt)}
    assert relabelled(requests, Random(7)) == other
    assert relabelled(requests, Random(8)) != other


def test_relabelled_text_begins_with_another_word():
    texts = ["Tell me all.", "Tell me more.", "  Why?"]
    requests = [Request(index, text, 4, None) for index, text in enumerate(texts)]
    first, second, third = (request.prompt for request in relabelled(requests, Random(7)))
    suffix = first.removeprefix("Tell").removesuffix(" me all.")
    assert len(suffix) == 15
    assert (second, third) == (f"Tell{suffix} me more.", f"  Why?{suffix}")


@pytest.mark.parametrize(("duration", "count"), [("90s", 180), ("10min", 1200), ("1.5 h", 10_800), ("0.1s", 1)])
def test_duration_gives_number_of_requests_at_rate(duration, count):
    by_duration = random_tokens(input=8, output=4, arrivals=poisson(2), requests=duration)
    assert by_duration == random_tokens(input=8, output=4, arrivals=poisson(2), requests=count)
    talk = multi_turn(conversations=duration, turns=2, input=8, output=4, arrivals=poisson(2))
    assert talk.conversations == count


@pytest.mark.parametrize(("arrivals", "duration", "message"), [
    (poisson(2), "ten minutes", 'requests="10min"'),
    (poisson(2), "0s", 'requests="10min"'),
    (closed(4), "10min", "needs a rate"),
    (at_times((0, 1)), "10min", "no one rate"),
])
def test_duration_without_rate_or_unit_is_refused(arrivals, duration, message):
    with pytest.raises(SpecError, match=message):
        random_tokens(input=8, output=4, arrivals=arrivals, requests=duration)


@pytest.mark.parametrize("make", [
    lambda: MANY.mean_rate, lambda: random_tokens(input=8, output=4, arrivals=MANY, requests="10min"),
    lambda: mixed(stream={"input": 8, "output": 4, "arrivals": MANY.at_most(4), "requests": 2}, prefill=RANDOM),
])
def test_refusal_repeats_only_the_begin_of_many_times(make):
    with pytest.raises(SpecError, match="at_times") as caught:
        make()
    assert len(str(caught.value)) < 400
