"""Flags and variables that a released version of an engine removed, and what replaces each of them.

Read in the wheels of vLLM 0.26.0 to 0.33.0 and SGLang 0.5.15 to 0.5.23. `since` is the first of them without the name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pytest_llmperf.errors import SpecError
from pytest_llmperf.model.engine import EngineSpec


@dataclass(frozen=True, slots=True)
class Retired:
    """A removed name.

    Args:
        since: first version without the name.
        instead: what a spec says instead, as Python; "" if nothing replaces the name.
    """

    since: str
    instead: str = ""

    def __str__(self) -> str:
        return f" since {self.since} or earlier." + (f" Write {self.instead}." if self.instead else "")


def _all(since: str, **instead: str) -> dict[str, Retired]:
    return {name: Retired(since, text) for name, text in instead.items()}


_REPORT_BALANCE = 'expert_balancedness_report_mode="prometheus"'
FLAGS: Mapping[str, Mapping[str, Retired]] = MappingProxyType({
    "vllm": {
        **_all(
            "0.26.0", disable_log_requests="enable_log_requests=False", speculative_model="speculative_config={…}",
            num_speculative_tokens="speculative_config={…}", ngram_prompt_lookup_max="speculative_config={…}",
            cuda_graph_sizes="cudagraph_capture_sizes=[…]", max_seq_len_to_capture="max_cudagraph_capture_size=…",
            guided_decoding_backend="structured_outputs_config={…}", rope_scaling="hf_overrides={…}",
            task="runner=… or convert=…", enable_reasoning="reasoning_parser=…", swap_space="", num_scheduler_steps="",
            use_v2_block_manager="", preemption_mode="", scheduler_delay_factor="", device="",
        ),
        **_all("0.27.1", max_num_partial_prefills="", max_long_partial_prefills=""),
        **_all("0.28.0", calculate_kv_scales="", override_attention_dtype=""),
    },
    "sglang": {
        **_all("0.5.18", torchao_config=""),
        **_all(
            "0.5.20", cuda_graph_max_bs="cuda_graph_max_bs_decode=…", cuda_graph_bs="cuda_graph_bs_decode=[…]",
            piecewise_cuda_graph_max_tokens="cuda_graph_max_bs_prefill=…",
            piecewise_cuda_graph_tokens="cuda_graph_bs_prefill=[…]",
            disable_piecewise_cuda_graph='cuda_graph_backend_prefill="disabled"',
            enforce_piecewise_cuda_graph='cuda_graph_backend_prefill="tc_piecewise"',
            enable_breakable_cuda_graph='cuda_graph_backend_prefill="breakable"',
            enable_expert_distribution_metrics=_REPORT_BALANCE, stream_output="incremental_streaming_output=True",
            mamba_scheduler_strategy="mamba_radix_cache_strategy=…", nsa_prefill_backend="dsa_prefill_backend=…",
            nsa_decode_backend="dsa_decode_backend=…", enable_prefill_context_parallel="enable_prefill_cp=True",
            prefill_cp_mode="cp_strategy=…",
            speculative_dflash_draft_window_size="speculative_draft_window_size=…",
        ),
    },
})  # fmt: skip
VARIABLES: Mapping[str, Mapping[str, Retired]] = MappingProxyType({
    "vllm": _all("0.26.0", VLLM_USE_V1="", VLLM_ATTENTION_BACKEND="attention_backend=…",
                 VLLM_TORCH_PROFILER_DIR="profiler_config={…}"),
    "sglang": _all("0.5.18", SGLANG_ENABLE_EPLB_BALANCEDNESS_METRIC=_REPORT_BALANCE),
})


def replacement(engine: str, name: str, flags: Collection[str]) -> str | None:
    """The end of the sentence "vllm 0.33.0 has no flag --x", if the flag was removed, or is newer than the version.

    Args:
        name: with underscores.
        flags: options of the version, e.g. "--max-num-seqs".
    """
    retired = FLAGS.get(engine, {})
    if name in retired:
        return str(retired[name])
    older = [old for old, entry in retired.items()
             if entry.instead.partition("=")[0] == name and "--" + old.replace("_", "-") in flags]
    return f". Write {older[0]}, its older name." if older else None


def check_variables(spec: EngineSpec, version: str | None) -> None:
    """Refuse a variable that the version no longer reads; otherwise a server would start without its effect, or end.

    Args:
        version: None for the emulator, which follows the newest version.

    Raises:
        SpecError: names what replaces the variable.
    """
    for name in dict(spec.env):
        entry = VARIABLES.get(spec.engine, {}).get(name)
        if entry is not None and (version is None or _numbers(version) >= _numbers(entry.since)):
            raise SpecError(f"{spec.engine}({spec.model!r}, env={{{name!r}: …}}): {spec.engine}{_space(version)} reads "
                            f"no variable {name}{entry} No server was started.")


def _space(version: str | None) -> str:
    return f" {version}" if version else ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))
