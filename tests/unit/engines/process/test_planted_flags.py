"""Flags planted over what a suite says."""

import pytest

from pytest_llmperf.engines.endpoint.spec import endpoint
from pytest_llmperf.engines.process.planted_flags import planted_flag, with_planted_flags
from pytest_llmperf.engines.spec import flags_of, sglang, vllm
from pytest_llmperf.errors import ConfigError, SpecError

DRAFTS = {"method": "ngram", "synthetic_acceptance_length": 2.5}
PLAIN = vllm("tiny", max_num_batched_tokens=1024)


@pytest.mark.parametrize(("text", "flags"), [
    ("vllm:enforce-eager", {"enforce_eager": True}),
    ("vllm:--enforce_eager", {"enforce_eager": True}),
    ("vllm:no-enable-prefix-caching", {"enable_prefix_caching": False}),
    ("vllm:max-num-batched-tokens=8192", {"max_num_batched_tokens": 8192}),
    ("vllm:kv-cache-dtype=fp8", {"kv_cache_dtype": "fp8"}),
    ("vllm:compilation-config={\"mode\": 0}", {"compilation_config": {"mode": 0}}),
    ("vllm:speculative-config.synthetic_acceptance_length=2.0", {}),
])  # fmt: skip
def test_planted_flag_overrides_flag_of_spec(text, flags):
    planted = with_planted_flags(PLAIN, [planted_flag(text)])
    assert flags_of(planted) == {"max_num_batched_tokens": 1024} | flags


def test_planted_key_changes_existing_json_flag():
    spec = vllm("tiny", speculative_config=DRAFTS)
    planted = with_planted_flags(spec, [planted_flag("vllm:speculative-config.synthetic_acceptance_length=2.0")])
    assert flags_of(planted) == {"speculative_config": DRAFTS | {"synthetic_acceptance_length": 2.0}}


@pytest.mark.parametrize("spec", [sglang("tiny"), endpoint("http://h:1", model="m")])
def test_planted_flag_keeps_spec_of_other_engine(spec):
    assert with_planted_flags(spec, [planted_flag("vllm:enforce-eager")]) == spec


def test_later_planted_flag_overrides_earlier_planted_flag():
    planted = [planted_flag("vllm:max-num-seqs=4"), planted_flag("vllm:max-num-seqs=8")]
    assert flags_of(with_planted_flags(PLAIN, planted))["max_num_seqs"] == 8


def test_planted_flag_equals_flag_parsed_from_text():
    for text in ("vllm:enforce_eager=true", "vllm:a.b=2.0", 'vllm:x="words"'):
        assert str(planted_flag(text)) == text
        assert planted_flag(str(planted_flag(text))) == planted_flag(text)


@pytest.mark.parametrize("text", ["enforce-eager", "vllm:", ":x", "vllm:x=", "vllm:x.=1", "vllm:a b", "vllm:port=1",
                                  "endpoint:x"])
def test_malformed_planted_flag_is_refused(text):
    with pytest.raises(ConfigError, match=r"--plant-flag .*(write it as|cannot be planted)"):
        planted_flag(text)


def test_an_unknown_engine_is_named():
    with pytest.raises(SpecError, match="Did you mean 'vllm'"):
        planted_flag("vlm:enforce-eager")
