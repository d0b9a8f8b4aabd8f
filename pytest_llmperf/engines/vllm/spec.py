"""The spec of a vLLM server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_llmperf.engines.spec import Variable, build_spec
from pytest_llmperf.model.engine import EngineSpec, Flag


def vllm(
    model: str,
    *,
    env: Mapping[str, Variable] | None = None,
    model_alias: str | Sequence[str] = (),
    **flags: Flag,
) -> EngineSpec:
    """Describe a vLLM server that the session starts.

    Args:
        model: a shape name ("llama-3.1-8b", "tiny", …), a path, or a hub id.
        env: further environment variables of the server: texts, numbers or paths. None leaves the variable out.
        model_alias: further model name, or list of names, that the server may write into the chunks of an answer. Any
            name other than `model` and `model_alias` makes the test an ERROR.
        flags: vLLM's own flags with underscores: `max_num_batched_tokens=1024`, `enable_prefix_caching=False`
            (→ `--no-enable-prefix-caching`), `speculative_config={"method": "ngram", …}`. The flags are passed on
            unchanged, and vLLM rejects unknown flags. A flag with value None is left out.

    Raises:
        SpecError: the model, a flag or a variable is not valid, or the launcher sets the flag itself (`host`, `port`,
            `served_model_name`).
    """
    return build_spec("vllm", model, {} if env is None else env, flags, model_alias)
