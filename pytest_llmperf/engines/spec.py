"""Builders of engine specs: the names that a suite imports."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from os import PathLike

from pytest_llmperf.engines.control.service_url import secret_of_query, shortest, url_problem
from pytest_llmperf.engines.endpoint.credentials import secret_headers
from pytest_llmperf.engines.endpoint.metrics_address import metrics_addresses
from pytest_llmperf.errors import SpecError
from pytest_llmperf.kinds import kind_names
from pytest_llmperf.masking import secret_values
from pytest_llmperf.model.api import DIALECTS, PROTOCOLS, Api
from pytest_llmperf.model.engine import ENDPOINT, Endpoint, EngineSpec, Flag, fields_as_json, flags_as_json
from pytest_llmperf.model.spending import SpendingLimit

#: Fields of a request that a workload, or another argument of `endpoint`, decides.
OWN_FIELDS = {
    "model": "model=", "prompt": "the workload", "messages": "the workload", "input": "the workload",
    "stream": "stream=", **dict.fromkeys(("max_tokens", "max_completion_tokens", "max_output_tokens"),
                                         "output= of the workload, and by dialect= the name of the field"),
}
MOST_CHOICES = 128
Variable = str | int | float | PathLike[str] | None


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
    spec = build_spec("vllm", model, {} if env is None else env, flags)
    return replace(spec, model_aliases=_aliases(f"vllm({model!r}", model_alias))


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
    spec = build_spec("sglang", model, {} if env is None else env, flags)
    return replace(spec, model_aliases=_aliases(f"sglang({model!r}", model_alias))


def transformers(
    model: str, *, max_batch_size: int = 8, batch_wait_ms: float = 50, dtype: str = "bfloat16",
    env: Mapping[str, Variable] | None = None,
) -> EngineSpec:  # fmt: skip
    """Describe a server that answers with Hugging Face `generate` in static batches.

    Use it as side B of a claim about continuous batching. The server pads the prompts of a batch to one length and
    computes every row until the longest answer ends. It runs in vLLM's Python environment.

    Args:
        model: a shape name with real weights ("tiny"), a path, or a hub id.
        max_batch_size: most rows of a batch.
        batch_wait_ms: how long a batch waits for its rows, in milliseconds, once the model is free.
        dtype: number format by its PyTorch name.
        env: as of `vllm`.

    Raises:
        SpecError: the model or an argument is not valid.
    """
    if isinstance(max_batch_size, bool) or not isinstance(max_batch_size, int) or max_batch_size < 1:
        raise SpecError(f"transformers({model!r}, max_batch_size={max_batch_size!r}): write a whole number of at least "
                        "1. No server was started.")
    if isinstance(batch_wait_ms, bool) or not isinstance(batch_wait_ms, int | float) or not batch_wait_ms >= 0:
        raise SpecError(f"transformers({model!r}, batch_wait_ms={batch_wait_ms!r}): write a number of milliseconds of "
                        "at least 0. No server was started.")
    flags: dict[str, Flag] = {"max_batch_size": max_batch_size, "batch_wait_ms": batch_wait_ms, "dtype": dtype}
    return build_spec("transformers", model, {} if env is None else env, flags)


def endpoint(
    url: str,
    *,
    model: str,
    model_alias: str | Sequence[str] = (),
    protocol: str = "completions",
    stream: bool = True,
    dialect: str = "vllm",
    fields: Mapping[str, Flag] | None = None,
    text: bool = False,
    tokenizer: str = "",
    ends: str | Sequence[str] = (),
    api_key_env: str | None = None,
    api_key_file: str | None = None,
    headers_env: Mapping[str, str] | None = None,
    metrics: str | Sequence[str] | None = None,
    metrics_headers_env: Mapping[str, str] | None = None,
    kind: str | None = None,
    limit: SpendingLimit | None = None,
    api_key: object = None,
    headers: object = None,
) -> Endpoint:
    """Describe an OpenAI-compatible server that is already running.

    The session measures this server and never starts, stops or resets the server.

    Args:
        url: e.g. "http://10.0.0.5:8000", with or without /v1; a base with a version of its own, "https://h/v3"; a
            deployment, "https://h/openai/deployments/d?api-version=2024-10-21"; or the full URL of the requests.
            Credentials are rejected.
        model: the model id that the server lists under /v1/models.
        model_alias: further model name, or list of names, that the chunks of an answer may contain, such as
            "gpt-x-2024-08-06" for "gpt-x". Any other name makes the test an ERROR.
        protocol: "completions" (`/v1/completions`), "chat" (`/v1/chat/completions`) or "responses" (`/v1/responses`).
            Chat and Responses take text, so token ids of a workload are sent as a word each.
        stream: whether to ask for streamed answers. A whole answer has an E2E latency, and neither a TTFT nor a time
            between tokens.
        dialect: which fields a request has. "vllm" forces the output length (`ignore_eos`, `min_tokens`) and asks for
            the usage in each chunk. "openai" has the fields of OpenAI's reference alone, so the model may end an answer
            earlier. "basic" also leaves out `stream_options` and calls the output length `max_tokens`.
        fields: further JSON fields of each request, `{"reasoning_effort": "low"}`. None leaves out a field that the
            dialect would send, `{"temperature": None}`.
        text: whether to send prompts as text to /v1/completions, too, for a service that refuses token ids.
        tokenizer: tokenizer of the model: a path of tokenizer.json, a folder with this file, or a name in the local
            cache of the Hugging Face hub. It counts the received text of a service that shows no counts per chunk and
            no counters, and it makes text prompts of the stated length. Needs
            `pip install tokenizers`.
        ends: further finish reason, or list of finish reasons, that is a success of this service, such as
            "eos_token". An answer with any other end than these, "stop", "length", "tool_calls" and "function_call"
            is a failed request.
        api_key_env: environment variable, in upper case, whose value is sent as `Authorization: Bearer VALUE`.
        api_key_file: file with the key instead; a relative path starts at the project root.
        headers_env: environment variable by HTTP header, `{"X-Api-Key": "SERVICE_KEY"}`.
        metrics: where the counters of a service of several replicas are read: a list with the metrics page of each
            replica, "dns://NAME:PORT" for a headless service, or "prometheus+http://HOST:PORT?match={…}". By default
            the page `/metrics` of `url` is read; an empty list reads no counters.
        metrics_headers_env: environment variable by HTTP header for `metrics`. The headers of `url` are not sent there.
        kind: hardware kind of the service, such as "h200". The test then runs as this kind, `-m h200` selects a test
            whose `engine` marker names the endpoint, and baselines of this kind are compared. By default the kind is
            that of the machine that sends.
        limit: the most that a session may spend at this service, `spending_limit(tokens=2_000_000)`.
        api_key, headers: rejected with what to write instead, because a test must not contain a key.

    Raises:
        SpecError: an argument is not valid.
    """
    if api_key is not None or headers is not None:
        given, instead = ("api_key", 'api_key_env="VARIABLE"') if headers is None else (
            "headers", 'headers_env={"HEADER": "VARIABLE"}')
        raise SpecError(f"endpoint(…, {given}=…): a test must not contain a key. Put the value into an environment "
                        f"variable and write {instead}.")
    if not isinstance(url, str):
        raise SpecError(f'endpoint({url!r}): a URL is text. Write it as endpoint("http://HOST:PORT", model="ID").')
    if "@" in url:  # not shown: what stands before it may be a password
        raise SpecError(
            "endpoint(…): the URL holds credentials (an @), which would end up in results. Leave them out; "
            'for a server with a login write headers_env={"Authorization": "VARIABLE"}.'
        )
    if (secret := secret_of_query(url)) is not None:
        raise SpecError(f'endpoint(…): the query of the URL holds a secret ({secret}), which would end up in results. '
                        'Leave it out, and write headers_env={"HEADER": "VARIABLE"}.')
    if (problem := url_problem(url, protocol)) is not None:
        raise SpecError(f'endpoint({url!r}): {problem} Write it as endpoint("http://HOST:PORT", model="ID").')
    if not isinstance(model, str) or not model:
        raise SpecError(f"endpoint({url!r}, model={model!r}): the model is the id that /v1/models lists, as text.")
    call = f"endpoint({url!r}"
    aliases = _aliases(call, model_alias)
    accepted = _names(call, "ends", ends, 'a finish reason is a text, "eos_token",')
    api = replace(_api(call, protocol, stream, dialect, fields), text=text, tokenizer=tokenizer,
                  ends=tuple(sorted(accepted)))
    if not isinstance(text, bool):
        raise SpecError(f"{call}, text={text!r}): write True or False.")
    if not isinstance(tokenizer, str) or "\0" in tokenizer:
        raise SpecError(f"{call}, tokenizer={tokenizer!r}): a tokenizer is a path or a name, as text.")
    sources = secret_headers(call, api_key_env, api_key_file, headers_env)
    addresses = metrics_addresses(call, metrics)
    if kind is not None and kind not in kind_names():
        near = get_close_matches(str(kind), kind_names(), n=1)
        meant = f" Did you mean {near[0]!r}?" if near else ""
        raise SpecError(f"{call}, kind={kind!r}): there is no such hardware kind.{meant} Known: "
                        f"{', '.join(kind_names())}.")
    if metrics_headers_env and not addresses:
        raise SpecError(f"{call}, metrics_headers_env=…): the headers need an address. Add metrics=.")
    if limit is not None and not isinstance(limit, SpendingLimit):
        raise SpecError(f"{call}, limit={limit!r}): write limit=spending_limit(tokens=2_000_000).")
    metrics_headers = secret_headers(call, None, None, metrics_headers_env)
    return Endpoint(
        engine=ENDPOINT, model=model, url=shortest(url), model_aliases=aliases, secret_headers=sources,
        api=api, metrics=addresses, metrics_headers=metrics_headers, kind=kind, limit=limit,
    )


def _api(call: str, protocol: str, stream: bool, dialect: str, fields: Mapping[str, Flag] | None) -> Api:
    """The interface of an endpoint.

    Raises:
        SpecError: a value is unknown, or a field is set elsewhere.
    """
    for argument, chosen, names in (("protocol", protocol, PROTOCOLS), ("dialect", dialect, DIALECTS)):
        if chosen not in names:
            raise SpecError(f"{call}, {argument}={chosen!r}): write one of {', '.join(map(repr, names))}.")
    if not isinstance(stream, bool):
        raise SpecError(f"{call}, stream={stream!r}): write True or False.")
    if not isinstance(fields or {}, Mapping) or not all(isinstance(name, str) and name for name in fields or ()):
        raise SpecError(f'{call}, fields=…): write {{"FIELD": value}}.')
    for name, value in (fields or {}).items():
        if name in OWN_FIELDS:
            raise SpecError(f"{call}, fields={{{name!r}: …}}): this field is set by {OWN_FIELDS[name]}. Leave it out.")
        if name == "n" and (type(value) is not int or not 1 <= value <= MOST_CHOICES):
            raise SpecError(f"{call}, fields={{'n': {value!r}}}): the number of answers to a request is a whole number "
                            f"from 1 to {MOST_CHOICES}.")
        if secret_values({name: value}, {}):
            raise SpecError(f"{call}, fields={{{name!r}: …}}): a test must not contain a key. Put the value into an "
                            'environment variable and write headers_env={"HEADER": "VARIABLE"}.')
    return Api(protocol, stream, dialect, fields_as_json(call, fields or {}))


def build_spec(engine: str, model: str, env: Mapping[str, Variable], flags: Mapping[str, Flag]) -> EngineSpec:
    """The spec of a server to start. Equal arguments in any order give equal specs.

    Args:
        engine: name of the engine's adapter.
        model: a shape name, a path, or a hub id.
        env: further environment variables of the server.
        flags: the engine's own flags with underscores; None leaves a flag out.

    Raises:
        SpecError: the model, a flag or a variable is not valid.
    """
    if not isinstance(model, str) or not model:
        raise SpecError(f"{engine}({model!r}): the model is a shape name, a path or a hub id, as text.")
    if not isinstance(env, Mapping):  # not shown: it may hold secrets
        raise SpecError(f'{engine}({model!r}, env=…): variables are a dict, env={{"NAME": "value"}}, and this is of '
                        f"type {type(env).__name__}.")
    return EngineSpec(
        engine=engine,
        model=model,
        flags=flags_as_json(engine, model, flags),
        env=tuple(sorted(_as_variable(engine, *item) for item in env.items() if item[1] is not None)),
    )


def flags_of(spec: EngineSpec) -> dict[str, object]:
    """Flag values as Python objects.

    Args:
        spec: of a server to start.
    """
    return {name: json.loads(value) for name, value in spec.flags}


def secrets_of(spec: EngineSpec) -> tuple[str, ...]:
    """What must not be written down of its flags and variables."""
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


def _aliases(call: str, given: str | Sequence[str]) -> tuple[str, ...]:
    return _names(call, "model_alias", given, 'an alias is a text, "gpt-x-2024-08-06",')


def _names(call: str, argument: str, given: str | Sequence[str], rule: str) -> tuple[str, ...]:
    """A text, or several texts, each once."""
    names = (given,) if isinstance(given, str) else given
    if not isinstance(names, Sequence) or not all(isinstance(name, str) and name for name in names):
        raise SpecError(f"{call}, {argument}={given!r}): {rule} or a list of texts.")
    return tuple(dict.fromkeys(names))


def _as_word(value: object) -> str:
    return json.dumps(value, sort_keys=True) if isinstance(value, Mapping) else str(value)


def _with_values(option: str, values: list[str]) -> list[str]:
    joined = len(values) == 1 and values[0].startswith("-")
    return [f"{option}={values[0]}"] if joined else [option, *values]


def _as_variable(engine: str, name: object, value: object) -> tuple[str, str]:
    """As the server gets it; a value that is refused is not shown, it may be a secret."""
    if not isinstance(name, str) or not name or "=" in name or "\0" in name:
        raise SpecError(f"{engine}(…, env={{{name!r}: …}}): a variable's name is text without '=' and NUL.")
    if isinstance(value, bool) or not isinstance(value, str | int | float | PathLike):
        raise SpecError(
            f"{engine}(…, env={{{name!r}: …}}): a variable is text, a number or a path, and this is of type "
            f"{type(value).__name__}. Write the text that the server shall read, \"1\" or \"true\", say."
        )
    if "\0" in str(value):
        raise SpecError(f"{engine}(…, env={{{name!r}: …}}): no variable can hold a NUL. Leave it out.")
    return name, str(value)
