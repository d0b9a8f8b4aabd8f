"""The spec of an SGLang server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_llmperf.engines.spec import Variable, build_spec
from pytest_llmperf.model.engine import EngineSpec, Flag


def sglang(
    model: str,
    *,
    env: Mapping[str, Variable] | None = None,
    model_alias: str | Sequence[str] = (),
    **flags: Flag,
) -> EngineSpec:
    """Describe an SGLang server that the session starts.

    Args:
        model: a shape name ("llama-3.1-8b", "tiny", …), a path, or a hub id.
        env: further environment variables of the server: texts, numbers or paths. None leaves the variable out.
        model_alias: further model name, or list of names, that the server may write into the chunks of an answer. Any
            name other than `model` and `model_alias` makes the test an ERROR.
        flags: SGLang's own flags with underscores: `chunked_prefill_size=1024`, `disable_radix_cache=True`,
            `schedule_policy="lpm"`. The flags are passed on unchanged, and SGLang rejects unknown flags. SGLang has
            no negated switches: leave a switch out (None) instead of setting the switch to False. With
            `skip_tokenizer_init=True` the load generator uses /generate instead of the OpenAI routes.

    Raises:
        SpecError: the model, a flag or a variable is not valid, or the launcher sets the flag itself (`host`, `port`,
            `served_model_name`).
    """
    return build_spec("sglang", model, {} if env is None else env, flags, model_alias)
