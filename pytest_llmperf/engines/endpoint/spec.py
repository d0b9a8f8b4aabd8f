"""The spec of a service that already runs."""


from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pytest_llmperf.engines.control.service_url import secret_of_query, shortest, url_problem
from pytest_llmperf.engines.endpoint.credentials import HEADER_NAME, secret_headers
from pytest_llmperf.engines.endpoint.metrics_address import metrics_addresses
from pytest_llmperf.engines.spec import aliases_of, names_of
from pytest_llmperf.errors import SpecError, did_you_mean, refuse
from pytest_llmperf.kinds import kind_names
from pytest_llmperf.masking import secret_values
from pytest_llmperf.model.api import DIALECTS, PROTOCOLS, Api
from pytest_llmperf.model.engine import ENDPOINT, Endpoint, Flag, fields_as_json
from pytest_llmperf.model.spending import SpendingLimit

#: Fields of a request that a workload, or another argument of `endpoint`, decides.
OWN_FIELDS = {
    "model": "model=", "prompt": "the workload", "messages": "the workload", "input": "the workload",
    "stream": "stream=", **dict.fromkeys(("max_tokens", "max_completion_tokens", "max_output_tokens"),
                                         "output= of the workload, and by dialect= the name of the field"),
}
MOST_CHOICES = 128


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
    replica_header: str = "",
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
        replica_header: response header whose value names the replica that answered, such as "X-Pod-Name". The run file
            then has requests, tokens, TTFT and TPOT of each replica, and the replicas of a claim between two services
            count as server starts.
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
    aliases = aliases_of(call, model_alias)
    accepted = names_of(call, "ends", ends, 'a finish reason must be a text, such as "eos_token",')
    addresses = metrics_addresses(call, metrics)
    refuse(
        (not isinstance(replica_header, str) or not HEADER_NAME.fullmatch(replica_header or "X"),
         f'{call}, replica_header={replica_header!r}): write the name of a header, such as "X-Pod-Name".'),
        (not isinstance(stream, bool), f"{call}, stream={stream!r}): write True or False."),
        (not isinstance(text, bool), f"{call}, text={text!r}): write True or False."),
        (not isinstance(tokenizer, str) or "\0" in tokenizer,
         f"{call}, tokenizer={tokenizer!r}): a tokenizer is a path or a name, as text."),
        (metrics_headers_env and not addresses,
         f"{call}, metrics_headers_env=…): the headers need an address. Add metrics=."),
        (limit is not None and not isinstance(limit, SpendingLimit),
         f"{call}, limit={limit!r}): write limit=spending_limit(tokens=2_000_000)."),
    )
    api = replace(_api(call, protocol, stream, dialect, fields), text=text, tokenizer=tokenizer,
                  ends=tuple(sorted(accepted)), replica_header=replica_header.lower())
    sources = secret_headers(call, api_key_env, api_key_file, headers_env)
    if kind is not None and kind not in kind_names():
        raise SpecError(f"{call}, kind={kind!r}): there is no such hardware kind.{did_you_mean(kind, kind_names())} "
                        f"Known: {', '.join(kind_names())}.")
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
    if not isinstance(fields or {}, Mapping) or not all(isinstance(name, str) and name for name in fields or ()):
        raise SpecError(f'{call}, fields=…): write {{"FIELD": value}}.')
    for name, value in (fields or {}).items():
        if name in OWN_FIELDS:
            raise SpecError(f"{call}, fields={{{name!r}: …}}): this field is set by {OWN_FIELDS[name]}. Leave it out.")
        if name == "n" and (type(value) is not int or not 1 <= value <= MOST_CHOICES):
            raise SpecError(f"{call}, fields={{'n': {value!r}}}): the number of answers to a request must be a whole "
                            f"number from 1 to {MOST_CHOICES}.")
        if secret_values({name: value}, {}):
            raise SpecError(f"{call}, fields={{{name!r}: …}}): a test must not contain a key. Put the value into an "
                            'environment variable and write headers_env={"HEADER": "VARIABLE"}.')
    return Api(protocol, stream, dialect, fields_as_json(call, fields or {}))
