"""How the requests of a server are written, and how its answers are read."""

from __future__ import annotations

from dataclasses import dataclass

PROTOCOLS = ("completions", "chat", "responses")
DIALECTS = ("vllm", "openai", "basic")
#: Fields that force the length of an answer.
FORCING = {"completions": ("min_tokens", "ignore_eos"), "chat": ("min_tokens", "ignore_eos"),
           "responses": ("ignore_eos",)}

#: Fields that end an answer at a text or a token, so its length cannot be forced.
STOPPING = ("stop", "stop_token_ids")


#: Finish reasons of a success. vLLM's "repetition" is none: the engine cut a degenerate answer short.
SUCCESSFUL_ENDS = ("stop", "length", "tool_calls", "function_call")
SUCCESSFUL_STATUSES = ("completed", "max_output_tokens")


@dataclass(frozen=True, slots=True)
class Api:
    """The HTTP interface of a server, as a test describes it.

    Args:
        protocol: "completions" (`/v1/completions`), "chat" (`/v1/chat/completions`) or "responses" (`/v1/responses`).
        stream: whether answers are streamed; otherwise each answer is one JSON object.
        dialect: which fields a request has. "vllm" forces the output length and asks for the usage in each chunk.
            "openai" has the fields of OpenAI's reference. "basic" leaves out `stream_options` and names the output
            length `max_tokens`.
        fields: further fields of each request: pairs of name and JSON value, sorted. "null" leaves the field out.
        text: whether prompts are sent as text also where token ids could be sent.
        tokenizer: name of the tokenizer that counts received text and makes text prompts; "" for none.
        ends: further finish reasons that are a success, sorted.
        done: whether each stream of completions or chat ends with `[DONE]`.
        replica_header: response header that names the replica, in lower case; "" for none. No request depends on it.
    """

    protocol: str = "completions"
    stream: bool = True
    dialect: str = "vllm"
    fields: tuple[tuple[str, str], ...] = ()
    text: bool = False
    tokenizer: str = ""
    ends: tuple[str, ...] = ()
    done: bool = True
    replica_header: str = ""

    @property
    def sends_text(self) -> bool:
        """Whether each prompt is sent as text, because a request cannot contain token ids or the test asks for text."""
        return self.text or self.protocol != "completions"

    @property
    def forces_length(self) -> bool:
        """Whether each answer must have exactly as many tokens as the workload states. Otherwise the model may end an
        answer earlier."""
        given = dict(self.fields)
        return self.dialect == "vllm" and not {*FORCING[self.protocol], *STOPPING} & given.keys()

    @property
    def choices(self) -> int:
        """Number of answers to one request, the field `n`."""
        return int(dict(self.fields).get("n") or 1)

    @property
    def accepted_ends(self) -> tuple[str, ...]:
        """The finish reasons of a success; for Responses the statuses, and the reasons of an incomplete response."""
        return (*(SUCCESSFUL_STATUSES if self.protocol == "responses" else SUCCESSFUL_ENDS), *self.ends)

    @property
    def asks_for_usage(self) -> bool:
        """Whether a stream must contain a usage, because each request asks for it."""
        is_asked = self.stream and self.dialect != "basic" and "stream_options" not in dict(self.fields)
        return is_asked and self.protocol != "responses"

    @property
    def stated(self) -> dict[str, str]:
        """The values that are not the default, by the name of the argument of `endpoint`."""
        given = {"protocol": self.protocol, "stream": str(self.stream), "dialect": self.dialect,
                 "fields": "{" + ", ".join(f'"{name}": {value}' for name, value in self.fields) + "}",
                 "text": str(self.text), "tokenizer": self.tokenizer, "ends": str(self.ends)}
        default = {"protocol": "completions", "stream": "True", "dialect": "vllm", "fields": "{}", "text": "False",
                   "tokenizer": "", "ends": "()"}
        return {name: value for name, value in given.items() if value != default[name]}


#: Streamed completions, as vLLM and SGLang serve them.
DEFAULT = Api()
