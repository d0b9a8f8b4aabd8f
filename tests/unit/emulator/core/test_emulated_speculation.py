"""Accepted drafts: by position, seeded, and never past the end."""

from __future__ import annotations

import pytest

from pytest_llmperf.emulator.config import Speculation
from pytest_llmperf.emulator.core.scheduler import Acceptance
from pytest_llmperf.shapes import SHAPES


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
