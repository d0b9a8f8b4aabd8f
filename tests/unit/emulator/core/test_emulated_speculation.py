"""Accepted drafts: by position, seeded, and never past the end."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_llmperf.emulator.config import Lookup, Speculation
from pytest_llmperf.emulator.core.lookup import draft_sizes
from pytest_llmperf.emulator.core.scheduler import Acceptance
from pytest_llmperf.shapes import SHAPES

ROOT = Path(__file__).parents[4]


def test_draft_position_is_accepted_with_given_conditional_probability():
    rates = (0.8, 0.5, 0.9)
    acceptance = Acceptance(Speculation(3, rates))
    drawn = [acceptance.draw(hash((5, key)), 3) for key in range(60_000)]
    reached = [sum(count >= position for count in drawn) for position in range(4)]
    for position, rate in enumerate(rates):
        assert reached[position + 1] / reached[position] == pytest.approx(rate, abs=0.01)


def test_accepted_drafts_never_exceed_proposed_drafts():
    acceptance = Acceptance(Speculation(3, (1.0, 1.0, 1.0)))
    assert [acceptance.draw(0, drafts) for drafts in (3, 2, 1)] == [3, 2, 1]


@pytest.mark.parametrize(("rates", "expected"), [((0.0, 1.0), 0), ((1.0, 0.0), 1), ((1.0, 1.0), 2), ((1.0,), 2)])
def test_certain_acceptance_rates_give_constant_number_of_accepted_drafts(rates, expected):
    acceptance = Acceptance(Speculation(2, rates))
    assert {acceptance.draw(key, 2) for key in range(100)} == {expected}


def test_equal_texts_have_equal_accepted_drafts(lab):
    def accepted(token):
        engine = lab.engine(speculation=Speculation(3, (0.5, 0.5, 0.5)))
        lab.drive(engine, [(0, lab.sequence(token, 8, 200))], False)
        return engine.counters.spec_accepted_tokens

    assert accepted(1) == accepted(1)
    assert len({accepted(token) for token in range(1, 8)}) > 1


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("draft", [None, SHAPES["tiny"]])
def test_speculation_counters_match_tokens_per_step(lab, asynchronous, draft):
    engine = lab.engine(speculation=Speculation(3, (1.0, 1.0, 0.0), draft), async_scheduling=asynchronous)
    seq = lab.sequence(1, 8, 12)
    events = lab.drive(engine, [(0, seq)], False)
    assert [dict(event.tokens).get(1, 0) for event in events][:5] == [1, 3, 3, 3, 2]
    counters = engine.counters
    assert (counters.spec_drafts, counters.spec_draft_tokens, counters.spec_accepted_tokens) == (4, 12, 8)
    assert counters.spec_accepted_per_position == {0: 4, 1: 4}
    assert counters.generation_tokens == seq.generated == 12


def test_speculative_steps_are_not_fast_forwarded(lab):
    engine = lab.engine(speculation=Speculation(1, (0.5,)))
    engine.add(lab.sequence(1, 8, 30), 0)
    assert engine.fast_forward(engine.step(0).ended_ns, None) is None


PHRASE = tuple(range(1000, 1200, 7))
REPEATED = Lookup(2, 4)


def test_drafts_of_a_repeated_text_are_accepted_whole():
    assert set(draft_sizes(PHRASE * 4, REPEATED, 3)[:-1]) == {(3, 3)}


def test_text_that_repeats_nothing_gives_no_drafts():
    assert set(draft_sizes(PHRASE, REPEATED, 3)) == {(0, 0)}
    assert draft_sizes((5,), REPEATED, 3) == [(0, 0)]


def test_lookup_drafts_what_followed_and_ends_where_the_text_differs():
    text = (50, 60, 70, 80, 90, 50, 60, 70, 40, 30)
    assert draft_sizes(text, Lookup(1, 1), 4)[:2] == [(0, 0), (4, 2)]


def test_suffix_drafts_are_as_long_as_their_match_allows():
    text = PHRASE * 6
    assert {drafted for drafted, _ in draft_sizes(text, Lookup(1, 24, 1.0), 16)[:-1]} == {16}
    assert {drafted for drafted, _ in draft_sizes(text, Lookup(1, 24, 0.25), 16)[:-1]} == {6}


@pytest.mark.parametrize(("lookup", "measured"), [
    (Lookup(1, 4), {1: 0.468, 3: 0.283, 5: 0.200, 7: 0.147}), (Lookup(1, 24, 1.0), {8: 0.324, 12: 0.324, 16: 0.324}),
])
def test_acceptance_looked_up_in_prompts_is_at_most_half_above_that_of_the_trained_model(lookup, measured):
    """What was measured: docs/evidence/trained_models.md and thorough_engines.md."""
    chains = json.loads((ROOT / "suites" / "tasks" / "sums_chains.json").read_text(encoding="utf-8"))
    prompts = [tuple(map(ord, chain["conversations"][0]["value"])) for chain in chains]
    for tokens, rate in measured.items():
        sizes = [size for prompt in prompts for size in draft_sizes(prompt, lookup, tokens)]
        drafted, accepted = map(sum, zip(*sizes, strict=True))
        assert rate <= accepted / drafted <= 1.5 * rate


def test_emulated_answer_in_a_prompt_matches_nothing(lab):
    answer = lab.sequence(1, 8, 600).tokens(8, 608)
    assert sum(accepted for _, accepted in draft_sizes(answer, REPEATED, 3)) < 10


@pytest.mark.parametrize(("prompt", "least", "most"), [(PHRASE * 4, 70, 75), (PHRASE * 2 + PHRASE[::-1], 1, 60)])
def test_prompt_decides_how_many_looked_up_drafts_are_accepted(lab, prompt, least, most):
    engine = lab.engine(speculation=Speculation(3, (1.0,) * 3, lookup=REPEATED), async_scheduling=False)
    seq = replace(lab.sequence(1, 1, 100), prompt=prompt)
    lab.drive(engine, [(0, seq)], False)
    assert seq.generated == 100
    assert least <= engine.counters.spec_accepted_tokens <= most


def test_step_without_match_computes_one_token(lab):
    engine = lab.engine(speculation=Speculation(3, (1.0,) * 3, lookup=REPEATED), async_scheduling=False)
    seq = replace(lab.sequence(1, 1, 20), prompt=PHRASE)
    lab.drive(engine, [(0, seq)], False)
    assert (engine.counters.spec_drafts, seq.generated) == (0, 20)
