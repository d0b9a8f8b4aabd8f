"""The bytes of answers as vLLM and SGLang write them: whole answers, errors, and streams with an event per step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from pytest_llmperf.emulator.core import sequence
from pytest_llmperf.emulator.flags.launch import Launch
from pytest_llmperf.emulator.http.generation_request import GenerationRequest
from pytest_llmperf.emulator.http.replies import Refusal, dumps
from pytest_llmperf.emulator.http.text import text_of

DONE = b"data: [DONE]\n\n"
CRASHED = Refusal(500, "EngineCore encountered an issue (a planted fault).", "InternalServerError")
LIMITED = Refusal(429, "Too many requests (a planted fault).", "RateLimitError")
#: A router's answer to a request that reached no server.
UNREACHED = Refusal(502, "The router reached no server.", "BadGateway")
#: What answers a request that a planted fault refuses, by the kind of the fault.
REFUSALS = {"refused": CRASHED, "limited": LIMITED}


class Events(ABC):
    """Writes one answer, as a stream of events or whole.

    Args:
        ask, launch: the request and the server.
        number: number of the request, from which its id follows.
        created: seconds since 1970.
    """

    def __init__(self, ask: GenerationRequest, launch: Launch, number: int, created: int) -> None:
        self._ask = ask
        self._launch = launch
        self._number = number
        self._created = created

    def opening(self) -> list[bytes]:
        """What comes right before the first token."""
        return []

    @abstractmethod
    def tokens(self, index: int, ids: Sequence[int], cached: int, finished: bool) -> bytes:
        """Tokens of prompt `index`; `cached`: prompt tokens that came from the prefix cache."""

    def end(self) -> list[bytes]:
        """What follows the last token: usage and [DONE], one event each."""
        return [DONE]

    @abstractmethod
    def whole(self, ids: list[list[int]], cached: list[int]) -> object:
        """The answer without a stream as JSON, from the generated ids and the cached prompt tokens of each prompt."""

    def whole_of(self, sequences: Iterable[sequence.Sequence]) -> object:
        """The answer without a stream as JSON."""
        rows = [(list(s.tokens(s.prompt_length, s.length)), s.cached_tokens or 0) for s in sequences]
        return self.whole([ids for ids, _ in rows], [cached for _, cached in rows])

    def _text(self, ids: Iterable[int]) -> str:
        return "".join(map(text_of, ids)) if self._launch.tokenizer else ""


def error_event(refusal: Refusal = CRASHED) -> bytes:
    """An error after the head was sent: the status is 200 already."""
    return b"data: " + refusal.body() + b"\n\n"


class _OpenAiEvents(Events):
    """Chunks of /v1/completions and /v1/chat/completions. Templates, because this is the hot path of the server."""

    def __init__(self, ask: GenerationRequest, launch: Launch, number: int, created: int) -> None:
        super().__init__(ask, launch, number, created)
        chat = ask.kind == "chat"
        kind = "chat.completion.chunk" if chat else "text_completion"
        self._id = f"{'chatcmpl' if chat else 'cmpl'}-{launch.request_id(number)}"
        self._head = b'"id":%s,"object":"%s","created":%d,"model":%s,"choices":[' % (
            dumps(self._id), kind.encode(), created, dumps(launch.served_names[0])
        )  # fmt: skip
        self._generated = [0] * len(ask.prompts)
        self._cached = 0
        opening = b'data: {%s{"index":%%d,' % self._head.replace(b"%", b"%%")
        if chat:
            self._open, self._close = opening + b'"delta":{"content":"%s"},"logprobs":null,"finish_reason":%s', b"}]"
        else:
            self._open = opening + b'"text":"%s","logprobs":null,"finish_reason":%s,"stop_reason":null'
            self._close = b"}]"

    def opening(self) -> list[bytes]:
        """The role, in chats."""
        if self._ask.kind != "chat":
            return []
        prompt = dumps(list(self._ask.prompts[0])) if self._ask.token_ids else b"null"
        choice = b'{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
        usage = self._usage(len(self._ask.prompts[0]), 0) if self._ask.continuous_usage else b""
        return [b'data: {%s%s,"prompt_token_ids":%s%s}\n\n' % (self._head, choice, prompt, usage)]

    def tokens(self, index: int, ids: Sequence[int], cached: int, finished: bool) -> bytes:
        ask = self._ask
        earlier = self._generated[index]
        self._generated[index] = generated = earlier + len(ids)
        if not earlier:
            self._cached += cached
        event = self._open % (index, self._text(ids).encode(), b'"length"' if finished else b"null")
        if ask.kind == "chat":
            event += b',"stop_reason":null' if finished else b""
            event += b',"token_ids":%s' % (dumps(list(ids)) if ask.token_ids else b"null")
        else:
            prompt = dumps(list(ask.prompts[index])) if ask.token_ids and not earlier else b"null"
            event += b',"prompt_token_ids":%s,"token_ids":%s' % (prompt, dumps(list(ids)) if ask.token_ids else b"null")
        event += self._close
        if ask.continuous_usage:
            event += self._usage(len(ask.prompts[index]), generated)
        return event + b"}\n\n"

    def end(self) -> list[bytes]:
        if not self._ask.include_usage:
            return [DONE]
        usage = self._whole_usage(sum(self._generated), self._cached)
        return [b'data: {%s],"usage":%s}\n\n' % (self._head, dumps(usage)), DONE]

    @staticmethod
    def _usage(prompt: int, generated: int) -> bytes:
        return b',"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}' % (
            prompt, prompt + generated, generated
        )  # fmt: skip

    def whole(self, ids: list[list[int]], cached: list[int]) -> object:
        return {
            "id": self._id,
            "object": "chat.completion" if self._ask.kind == "chat" else "text_completion",
            "created": self._created,
            "model": self._launch.served_names[0],
            "choices": [self._choice(index, answer) for index, answer in enumerate(ids)],
            "usage": self._whole_usage(sum(map(len, ids)), sum(cached)),
        }

    def _choice(self, index: int, ids: list[int]) -> dict[str, object]:
        ask, text = self._ask, self._text(ids)
        content = {"message": {"role": "assistant", "content": text}} if ask.kind == "chat" else {"text": text}
        choice: dict[str, object] = {"index": index, **content, "logprobs": None, "finish_reason": "length"}
        choice |= {"stop_reason": None, "token_ids": ids if ask.token_ids else None}
        if ask.kind == "completion":
            prompt = list(ask.prompts[index]) if ask.token_ids else None
            choice |= {"prompt_logprobs": None, "prompt_token_ids": prompt}
        return choice

    def _whole_usage(self, generated: int, cached: int) -> dict[str, object]:
        """OpenAI's usage; without cached tokens if the server does not report them."""
        prompt = self._ask.prompt_tokens
        usage = {"prompt_tokens": prompt, "total_tokens": prompt + generated, "completion_tokens": generated}
        return usage | ({"prompt_tokens_details": {"cached_tokens": cached}} if self._launch.cached_details else {})


class _GenerateEvents(Events):
    """SGLang's native answer: each event has all text and ids so far, unless a flag of the server changes that."""

    def __init__(self, ask: GenerationRequest, launch: Launch, number: int, created: int) -> None:
        super().__init__(ask, launch, number, created)
        self._ids: list[list[int]] = [[] for _ in ask.prompts]
        self._counts = [0] * len(ask.prompts)

    def tokens(self, index: int, ids: Sequence[int], cached: int, finished: bool) -> bytes:
        self._ids[index] = shown = list(ids) if self._launch.incremental else [*self._ids[index], *ids]
        self._counts[index] += len(ids)
        event = self._output(index, shown, self._counts[index], cached, finished)
        return b"data: %s\n\n" % dumps(event | ({"index": index} if len(self._ask.prompts) > 1 else {}))

    def whole(self, ids: list[list[int]], cached: list[int]) -> object:
        outputs = [self._output(i, row, len(row), cached[i], True) for i, row in enumerate(ids)]
        return outputs[0] if len(outputs) == 1 else outputs

    def _output(self, index: int, ids: list[int], count: int, cached: int, finished: bool) -> dict[str, object]:
        meta = {
            "id": self._launch.request_id(self._number),
            "finish_reason": {"type": "length", "length": self._ask.max_tokens} if finished else None,
            "prompt_tokens": len(self._ask.prompts[index]),
            "completion_tokens": count,
            "cached_tokens": cached,
        }
        text = {"text": self._text(ids)} if self._launch.tokenizer else {}
        return text | {"output_ids": ids, "meta_info": meta}


class _ResponseEvents(Events):
    """The Responses API as vLLM 0.32 serves it: typed, numbered events without a usage in each event.

    A text event has the text of one step. A step without text has no event. The last event holds the whole answer with
    its usage, and no `[DONE]` follows.
    """

    def __init__(self, ask: GenerationRequest, launch: Launch, number: int, created: int) -> None:
        super().__init__(ask, launch, number, created)
        self._events = 0
        self._texts: list[str] = []
        self._tokens = 0
        self._cached = 0

    def opening(self) -> list[bytes]:
        return [self._event(f"response.{kind}", response=self._response()) for kind in ("created", "in_progress")]

    def tokens(self, _index: int, ids: Sequence[int], cached: int, _finished: bool) -> bytes:
        self._cached = self._cached if self._tokens else cached
        self._tokens += len(ids)
        text = self._text(ids)
        if not text:
            return b""
        opening = b"" if self._texts else self._open()
        self._texts.append(text)
        return opening + self._event("response.output_text.delta", **self._place, delta=text, logprobs=[])

    def end(self) -> list[bytes]:
        text = "".join(self._texts)
        answer = self._whole(text, self._tokens, self._cached)
        return [*(self._close(text) if text else []), self._event("response.completed", response=answer)]

    @property
    def _place(self) -> dict[str, object]:
        return {"content_index": 0, "item_id": self._item_id, "output_index": 0}

    def _open(self) -> bytes:
        item = self._item("in_progress", [])
        return (self._event("response.output_item.added", output_index=0, item=item)
                + self._event("response.content_part.added", **self._place, part=_part("")))

    def _close(self, text: str) -> list[bytes]:
        item = self._item("completed", [_part(text)])
        return [
            self._event("response.output_text.done", **self._place, text=text, logprobs=[]),
            self._event("response.content_part.done", **self._place, part=_part(text)),
            self._event("response.output_item.done", output_index=0, item=item),
        ]

    def _event(self, kind: str, **values: object) -> bytes:
        event = values | {"sequence_number": self._events, "type": kind}
        self._events += 1
        return b"event: %s\ndata: %s\n\n" % (kind.encode(), dumps(event))

    def whole(self, ids: list[list[int]], cached: list[int]) -> object:
        return self._whole(self._text(ids[0]), len(ids[0]), cached[0])

    def _whole(self, text: str, tokens: int, cached: int) -> dict[str, object]:
        """The answer as one object. Every answer reaches its limit, which gives the status "incomplete"."""
        usage = {
            "input_tokens": self._ask.prompt_tokens,
            "input_tokens_details": {"cached_tokens": cached, "input_tokens_per_turn": [],
                                     "cached_tokens_per_turn": []},
            "output_tokens": tokens,
            "output_tokens_details": {"reasoning_tokens": 0, "tool_output_tokens": 0, "output_tokens_per_turn": [],
                                      "tool_output_tokens_per_turn": []},
            "total_tokens": self._ask.prompt_tokens + tokens,
        }
        output = [self._item("completed", [_part(text)])] if text else []
        return self._response() | {
            "incomplete_details": {"reason": "max_output_tokens"}, "output": output, "status": "incomplete",
            "usage": usage,
        }  # fmt: skip

    def _response(self) -> dict[str, object]:
        return {
            "id": f"resp_{self._launch.request_id(self._number)}", "created_at": self._created,
            "incomplete_details": None, "instructions": None,
            "metadata": None, "model": self._launch.served_names[0], "object": "response", "output": [],
            "parallel_tool_calls": True, "temperature": 0.0, "tool_choice": "auto", "tools": [], "top_p": 1.0,
            "background": False, "max_output_tokens": self._ask.max_tokens, "max_tool_calls": None,
            "previous_response_id": None, "prompt": None, "reasoning": None, "service_tier": "auto",
            "status": "in_progress", "text": None, "top_logprobs": None, "truncation": "disabled", "usage": None,
            "user": None,
        }  # fmt: skip

    @property
    def _item_id(self) -> str:
        return f"msg_{self._number:032x}"

    def _item(self, status: str, content: list[dict[str, object]]) -> dict[str, object]:
        return {"id": self._item_id, "content": content, "role": "assistant", "status": status, "type": "message"}


def _part(text: str) -> dict[str, object]:
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": []}


_WRITERS: dict[str, type[Events]] = {"generate": _GenerateEvents, "response": _ResponseEvents}


def events_of(ask: GenerationRequest, launch: Launch, number: int, created: int) -> Events:
    """The writer for a request; arguments as those of `Events`."""
    return _WRITERS.get(ask.kind, _OpenAiEvents)(ask, launch, number, created)
