"""Flags and variables that a released version of vLLM removed, and what replaces each of them.

Read in the wheels of vLLM 0.26.0 to 0.33.0. `since` is the first of them without the name.
"""

from __future__ import annotations

from pytest_llmperf.engines.versions import removed

FLAGS = {
    **removed(
        "0.26.0", disable_log_requests="enable_log_requests=False", speculative_model="speculative_config={…}",
        num_speculative_tokens="speculative_config={…}", ngram_prompt_lookup_max="speculative_config={…}",
        cuda_graph_sizes="cudagraph_capture_sizes=[…]", max_seq_len_to_capture="max_cudagraph_capture_size=…",
        guided_decoding_backend="structured_outputs_config={…}", rope_scaling="hf_overrides={…}",
        task="runner=… or convert=…", enable_reasoning="reasoning_parser=…", swap_space="", num_scheduler_steps="",
        use_v2_block_manager="", preemption_mode="", scheduler_delay_factor="", device="",
    ),
    **removed("0.27.1", max_num_partial_prefills="", max_long_partial_prefills=""),
    **removed("0.28.0", calculate_kv_scales="", override_attention_dtype=""),
}  # fmt: skip
VARIABLES = removed("0.26.0", VLLM_USE_V1="", VLLM_ATTENTION_BACKEND="attention_backend=…",
                    VLLM_TORCH_PROFILER_DIR="profiler_config={…}")
