"""The planted fault `answer_cache=off`: the prefix cache keeps prompts and loses generated tokens."""

import json

import pytest

from pytest_llmperf.emulator.build import build_service
from pytest_llmperf.emulator.options import read_options
from pytest_llmperf.load.virtual_client import Client
from pytest_llmperf.model.plan import ConversationPart, LoadPlan, PlannedRequest, StreamLimits

VLLM = ("serve", "tiny", "--max-model-len", "4096", "--enable-prompt-tokens-details")
SGLANG = ("--model-path", "tiny", "--context-length", "4096", "--enable-cache-report")


def cached_tokens(engine, *options):
    name = "vllm" if engine is VLLM else "sglang"
    service = build_service(read_options(["--hardware", "h200", "--engine", name, *options, "--", *engine]))
    bodies = [{"prompt": list(range(100)), "max_tokens": 200}, {"prompt": [7] * 20, "max_tokens": 4}]
    first, second = (json.dumps({**body, "stream": True}).encode() for body in bodies)
    later = PlannedRequest(1, "/v1/completions", second, after=0, part=ConversationPart("ids", 0, 0, continues=True))
    plan = LoadPlan("", 0, (PlannedRequest(0, "/v1/completions", first), later))
    answers = [request.exchange(0, StreamLimits()) for request in Client(service, plan).run()]
    assert [answer.prompt_tokens for answer in answers] == [100, 320]
    return answers[1].cached_tokens


@pytest.mark.parametrize(("engine", "with_answers", "prompts_only"), [(VLLM, 288, 96), (SGLANG, 299, 100)],
                         ids=["vllm", "sglang"])
def test_lost_answers_leave_prompt_of_turn_before_in_cache(engine, with_answers, prompts_only):
    assert cached_tokens(engine) == with_answers
    assert cached_tokens(engine, "--fault", "answer_cache=off") == prompts_only
