"""Flags and variables that a released version of SGLang removed, and what replaces each of them.

Read in the wheels of SGLang 0.5.15 to 0.5.23. `since` is the first of them without the name.
"""

from __future__ import annotations

from pytest_llmperf.engines.versions import removed

_REPORT_BALANCE = 'expert_balancedness_report_mode="prometheus"'
FLAGS = {
    **removed("0.5.18", torchao_config=""),
    **removed(
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
}  # fmt: skip
VARIABLES = removed("0.5.18", SGLANG_ENABLE_EPLB_BALANCEDNESS_METRIC=_REPORT_BALANCE)
