"""Builds the specs of vLLM and SGLang, and reads the flags of any spec."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from os import PathLike

from pytest_llmperf.errors import SpecError, refuse
from pytest_llmperf.masking import secret_values
from pytest_llmperf.model.engine import EngineSpec, Flag, flags_as_json

Variable = str | int | float | PathLike[str] | None


def build_spec(
    engine: str, model: str, env: Mapping[str, Variable], flags: Mapping[str, Flag],
    model_alias: str | Sequence[str] = (),
) -> EngineSpec:  # fmt: skip
    """The spec of a server to start. Equal arguments in any order give equal specs.

    Args:
        engine: name of the engine's adapter.
        model: a shape name, a path, or a hub id.
        env: further environment variables of the server.
        flags: the engine's own flags with underscores; None leaves a flag out.
        model_alias: further name, or list of names, that answers may give the model.

    Raises:
        SpecError: the model, a flag or a variable is not valid.
    """
    if not isinstance(model, str) or not model:
        raise SpecError(f"{engine}({model!r}): the model is a shape name, a path or a hub id, as text.")
    if not isinstance(env, Mapping):  # not shown: it may hold secrets
        raise SpecError(f'{engine}({model!r}, env=…): write variables as a dict, env={{"NAME": "value"}}, got a '
                        f"value of type {type(env).__name__}.")
    return EngineSpec(
        engine=engine,
        model=model,
        flags=flags_as_json(engine, model, flags),
        env=tuple(sorted(_as_variable(engine, *item) for item in env.items() if item[1] is not None)),
        model_aliases=aliases_of(f"{engine}({model!r}", model_alias),
    )


def flags_of(spec: EngineSpec) -> dict[str, object]:
    """Flag values as Python objects.

    Args:
        spec: of a server to start.
    """
    return {name: json.loads(value) for name, value in spec.flags}


def secrets_of(spec: EngineSpec) -> tuple[str, ...]:
    """Secret values in the flags and variables of a spec, which every output must mask."""
    return tuple(secret_values(flags_of(spec), dict(spec.env)))


def command_line(flags: Mapping[str, object]) -> list[str]:
    """Flags as argparse-style arguments: True → --x, False → --no-x, dict → JSON, list → --x a b.

    One value that begins with "-" is joined, --x=-1: alone it would be an option.

    Args:
        flags: name with underscores → value.
    """
    argv: list[str] = []
    for name, value in flags.items():
        option = "--" + name.replace("_", "-")
        if value is True:
            argv.append(option)
        elif value is False:
            argv.append("--no-" + name.replace("_", "-"))
        elif isinstance(value, Mapping):
            argv += [option, _as_word(value)]
        elif isinstance(value, list | tuple):
            argv += _with_values(option, [_as_word(item) for item in value])
        else:
            argv += _with_values(option, [str(value)])
    return argv


def aliases_of(call: str, given: str | Sequence[str]) -> tuple[str, ...]:
    """Further names of a model, each once."""
    return names_of(call, "model_alias", given, 'an alias must be a text, such as "gpt-x-2024-08-06",')


def names_of(call: str, argument: str, given: str | Sequence[str], rule: str) -> tuple[str, ...]:
    """A text, or several texts, each once."""
    names = (given,) if isinstance(given, str) else given
    if not isinstance(names, Sequence) or not all(isinstance(name, str) and name for name in names):
        raise SpecError(f"{call}, {argument}={given!r}): {rule} or a list of texts. Correct {argument}=.")
    return tuple(dict.fromkeys(names))


def _as_word(value: object) -> str:
    return json.dumps(value, sort_keys=True) if isinstance(value, Mapping) else str(value)


def _with_values(option: str, values: list[str]) -> list[str]:
    joined = len(values) == 1 and values[0].startswith("-")
    return [f"{option}={values[0]}"] if joined else [option, *values]


def _as_variable(engine: str, name: str, value: Variable) -> tuple[str, str]:
    """As the server gets it; a value that is refused is not shown, it may be a secret."""
    refuse(
        (not isinstance(name, str) or not name or "=" in name or "\0" in name,
         f"{engine}(…, env={{{name!r}: …}}): a variable's name must be text without '=' and NUL."),
        (isinstance(value, bool) or not isinstance(value, str | int | float | PathLike),
         f"{engine}(…, env={{{name!r}: …}}): a variable must be text, a number or a path, got a value of type "
         f"{type(value).__name__}. Write the text that the server shall read, such as \"1\" or \"true\"."),
        ("\0" in str(value), f"{engine}(…, env={{{name!r}: …}}): no variable can hold a NUL. Leave it out."),
    )
    return name, str(value)


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
