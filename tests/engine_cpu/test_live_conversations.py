"""Conversations with the answers of real engines: token ids are sent back as they came, and the cache supplies them."""

import re

import pytest

pytestmark = [pytest.mark.real_engine, pytest.mark.thorough, pytest.mark.timeout(900)]

TALK = """
import pytest
from pytest_llmperf import closed, multi_turn, sglang, vllm

pytestmark = [pytest.mark.cpu]
TALK = multi_turn(conversations=6, turns=5, input=(8, 24), output=(60, 80), starters=3, starter=(30, 40),
                  arrivals=closed(1), reply="server")

def test_talk(perf):
    run = perf.measure({spec}, TALK, runs=3)
    for turn in ("1", "2", "3", "4", "5", "2plus"):
        print(f"turn {{turn}}: hit rate {{run.value(f'hit_rate_turn{{turn}}'):.4f}}, "
              f"TTFT {{run.value(f'ttft_turn{{turn}}_p50'):.1f}} ms")
    for record in run.records:
        assert record.prompt_tokens == record.asked_prompt_tokens
        assert record.turn == 5 or len(record.answer_hash) == 16
    perf.check(run, "hit_rate_turn2plus >= 80%", "error_rate == 0")
"""
# Blocks of 32 tokens, the smallest on a CPU: vLLM's default of 128 is longer than an answer.
SPECS = {"vllm": 'vllm("tiny", max_model_len=4096, block_size=32)', "sglang": 'sglang("tiny", context_length=4096)'}

# What SGLang's radix cache does with a request is cut to the prompt: the tree never has a generated token.
LOSES_ANSWERS = '''
import sys
from importlib.machinery import PathFinder

CACHE = "sglang.srt.mem_cache.unified_radix_cache"


class Plant(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        spec = super().find_spec(name, path, target) if name == CACHE else None
        if spec is not None:
            load = spec.loader.exec_module
            spec.loader.exec_module = lambda module: (load(module), plant(module.UnifiedRadixCache))
        return spec


def plant(cache):
    insert = cache.checkpoint_into_tree
    cache.checkpoint_into_tree = lambda self, req, *, up_to, **more: insert(
        self, req, up_to=min(up_to, len(req.origin_input_ids)), **more)


sys.meta_path.insert(0, Plant)
'''


def hit_rates(result):
    return dict(re.findall(r"turn (\w+): hit rate ([\d.]+)", "\n".join(result.outlines)))


@pytest.mark.parametrize("which", SPECS)
def test_real_engine_supplies_answers_of_earlier_turns(run_real, which):
    result, tags = run_real(TALK.format(spec=SPECS[which]))
    assert tags == {"test_talk": set()}, result.outlines
    assert float(hit_rates(result)["2plus"]) > 0.85


@pytest.mark.parametrize("which", ["sglang"])
def test_real_engine_that_loses_answers_fails_by_hit_rate_of_later_turns(run_real, tmp_path, which):
    (tmp_path / "sitecustomize.py").write_text(LOSES_ANSWERS)
    spec = SPECS[which].replace(")", f', env={{"PYTHONPATH": "{tmp_path}"}})')
    result, tags = run_real(TALK.format(spec=spec))
    assert tags == {"test_talk": {"failure"}}, result.outlines
    result.stdout.fnmatch_lines(["hit_rate_turn2plus*80 %*FAIL*"])
    assert 0.3 < float(hit_rates(result)["2plus"]) < 0.78
