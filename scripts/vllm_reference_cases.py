"""Request sequences that show the rules of a scheduler. vLLM's results are recorded and compared with the emulator.

A case is plain JSON. `settings` are the engine's settings; `requests` are in the order of submission:

    prompt      parts in order: [first, count] is the ids first, first + 1, …; {"turn": i} is all of request i.
    max_tokens  number of tokens that the request generates.
    at_step     submitted before this step is scheduled (counted from 0; earlier if the engine is idle), or
    after       submitted as soon as this request has ended.
    abort_at    aborted before this step is scheduled, if the request is still unfinished.
    salt        separates prefix caches.

The name of a case names the rule that it shows.
"""

from __future__ import annotations

import random
from typing import Any

Case = dict[str, Any]
SETTINGS: Case = {
    "block_size": 32,
    "num_blocks": 1000,
    "max_num_batched_tokens": 256,
    "max_num_seqs": 16,
    "max_model_len": 4096,
    "prefix_caching": True,
    "chunked_prefill": True,
    "async_scheduling": False,
    "draft_tokens": 0,
    "drafter": "model",
    "accepted": 0,
}


def all_cases() -> list[Case]:
    """Every case, the ones with asynchronous scheduling last."""
    cases = [*prefix(), *eviction(), *groups(), *preemption(), *chunks(), *speculation(), *mixed(), *odd()]
    again = ("preempt", "chunk", "spec_", "mixed", "groups_30", "turns", "aborted", "twins")
    return cases + [
        case(f"{each['name']}_async", each["requests"], **each["settings"] | {"async_scheduling": True})
        for each in cases
        if each["name"].startswith(again)
    ]


def case(name: str, requests: list[Case], **changed: object) -> Case:
    """The longest sequence always fits: vLLM refuses to start otherwise; it keeps one block for itself."""
    settings = SETTINGS | changed
    settings["max_model_len"] = min(settings["max_model_len"], (settings["num_blocks"] - 1) * settings["block_size"])
    return {"name": name, "settings": settings, "requests": requests}


def request(*prompt: object, max_tokens: int, at_step: int | None = None, after: int | None = None) -> Case:
    when = {"at_step": at_step or 0} if after is None else {"after": after}
    return {"prompt": list(prompt), "max_tokens": max_tokens, **when}


def in_turn(requests: list[Case]) -> list[Case]:
    """One after the other."""
    return [
        {"prompt": prompt["prompt"], "max_tokens": prompt["max_tokens"], **({"after": i - 1} if i else {"at_step": 0})}
        for i, prompt in enumerate(requests)
    ]


def prefix() -> list[Case]:
    """Hits with room for everything: ends of prompts on, before and behind a block's, and answers that come back."""
    lengths = (100, 100, 96, 96, 95, 97, 112, 113, 1, 15, 16, 17, 17, 33, 128, 127, 129, 256, 257, 300, 300)
    same = in_turn([request([1000, n], max_tokens=3) for n in lengths])
    fork = in_turn([request([2000, k], [3000 + 50 * k, 60], max_tokens=5) for k in (50, 48, 64, 0, 63, 50, 48, 1, 100)])
    turns = [request([100, 70], max_tokens=23, at_step=0)]
    for i in range(5):
        turns.append(request({"turn": i}, [200 + 100 * i, 37 + i], max_tokens=20 + 7 * i, after=i))
    off = case("prefix_caching_off", same, prefix_caching=False)
    sizes = [
        case(f"prefix_{name}_block{size}", requests, block_size=size)
        for size in (16, 32, 128)
        for name, requests in (("lengths", same), ("forks", fork))
    ]
    return [*sizes, off, case("turns", turns), case("turns_block128", turns, block_size=128)]


def eviction() -> list[Case]:
    """Documents asked about again and again, in a cache that holds some of them."""
    draw = random.Random(11)
    documents = [[1000 * k + 50, draw.randrange(40, 180)] for k in range(9)]
    requests = in_turn(
        [
            request(documents[min(int(draw.expovariate(0.4)), 8)], [60 + i, draw.randrange(1, 20)],
                    max_tokens=draw.randrange(1, 14))
            for i in range(80)
        ]
    )
    talks: list[Case] = []
    for i in range(40):  # four conversations take turns
        said: list[Any] = [{"turn": i - 4}] if i >= 4 else [[500 * i + 7, 40]]
        talks.append(request(*said, [5000 + 30 * i, 11], max_tokens=9))
    return [
        *(case(f"evict_documents_{n}", requests, num_blocks=n) for n in (10, 20, 40, 80)),
        *(case(f"evict_turns_{n}", in_turn(talks), num_blocks=n) for n in (12, 20, 30)),
    ]


def groups() -> list[Case]:
    """Groups that share a prefix, several requests at once, under eviction."""
    draw = random.Random(5)
    order = [group for group in range(6) for _ in range(8)]
    draw.shuffle(order)
    sent = [
        request([1500 * group + 3, 150], [100 + 5 * i, 30], max_tokens=draw.randrange(5, 40), at_step=3 * (i // 2))
        for i, group in enumerate(order)
    ]
    return [case(f"groups_{n}", sent, num_blocks=n, max_num_seqs=6) for n in (30, 60, 150)]


def preemption() -> list[Case]:
    """More at once than the cache can hold to the end."""
    def together(count: int) -> list[Case]:
        return [request([600 * i + 2, 100], max_tokens=300, at_step=0) for i in range(count)]

    def uneven(count: int) -> list[Case]:
        draw = random.Random(count)
        return [
            request([600 * i + 2, draw.randrange(20, 200)], max_tokens=draw.randrange(30, 300), at_step=4 * i)
            for i in range(count)
        ]

    return [
        *(case(f"preempt_{k}x_{n}_block128", together(k), block_size=128, num_blocks=n)
          for k, n in ((4, 6), (4, 8), (8, 6), (8, 12), (16, 12), (16, 30))),
        *(case(f"preempt_{k}x_{n}", together(k), num_blocks=n) for k, n in ((4, 16), (8, 30), (16, 45), (16, 100))),
        *(case(f"preempt_uneven_{n}", uneven(12), num_blocks=n) for n in (20, 36)),
        case("preempt_uncached", together(8), num_blocks=30, prefix_caching=False),
        case("preempt_budget", uneven(16), num_blocks=30, max_num_batched_tokens=48),
    ]


def chunks() -> list[Case]:
    """The token budget: decodes first, then prompts in pieces; sequence limit; whole prompts only."""
    arriving = [
        request([10, 40], max_tokens=60, at_step=0),
        request([100, 3500], max_tokens=10, at_step=5),
        request([4000, 700], max_tokens=30, at_step=6),
        request([5000, 30], max_tokens=40, at_step=6),
        request([6000, 256], max_tokens=2, at_step=7),
        request([100, 2000], [9000, 100], max_tokens=5, at_step=9),
        request([7000, 1], max_tokens=1, at_step=30),
        request([7100, 64], max_tokens=1, at_step=31),
    ]
    crowd = [request([700 * i + 2, 35 * (i + 1)], max_tokens=15 - i, at_step=i // 3) for i in range(10)]
    return [
        *(case(f"chunk_budget_{n}", arriving, max_num_batched_tokens=n) for n in (64, 256, 2048)),
        case("chunk_few_seqs", crowd, max_num_seqs=3, max_num_batched_tokens=64),
        case("chunk_budget_below_batch", crowd, max_num_seqs=8, max_num_batched_tokens=8),
        case("chunk_never", arriving, chunked_prefill=False, max_num_batched_tokens=4096),
    ]


def speculation() -> list[Case]:
    """Four drafts, of which the first few are accepted."""
    crowd = [request([700 * i + 2, 35 * (i + 1)], max_tokens=50 - 4 * i, at_step=2 * i) for i in range(9)]
    group = [
        request([1500 * (i % 3), 50 + 32 * (i % 2)], [100 + 5 * i, 1 + 7 * i], max_tokens=5 + i, at_step=9 * (i // 2))
        for i in range(14)
    ]
    draft: Case = {"draft_tokens": 4, "max_num_batched_tokens": 64}
    return [
        *(case(f"spec_accept_{n}", crowd, **draft, accepted=n) for n in (4, 2, 0)),
        case("spec_accept_4_few_blocks", crowd, **draft, accepted=4, num_blocks=24),
        case("spec_accept_1_few_blocks", crowd, **draft, accepted=1, num_blocks=24),
        case("spec_turns", in_turn([request([100, 70], max_tokens=23)]) + [
            request({"turn": i}, [200 + 100 * i, 37], max_tokens=20, after=i) for i in range(4)
        ], **draft, accepted=4),
        case("spec_one_token_left", in_turn([request([1000, 65], max_tokens=7)] * 3), **draft, accepted=4),
        case("spec_one_token_left_beside", [
            request([1000, 65], max_tokens=5, at_step=0), request([3000, 20], max_tokens=60, at_step=4),
            request([1000, 65], max_tokens=9, at_step=8), request([1000, 65], max_tokens=9, at_step=8),
            request([5000, 300], max_tokens=9, at_step=10), request([1000, 65], max_tokens=9, at_step=11),
            request([1000, 65], max_tokens=9, at_step=20),
        ], **draft, accepted=2),
        *(case(f"spec_eagle_groups_{n}", group, **draft, accepted=2, drafter="eagle", num_blocks=n) for n in (36, 500)),
        case("spec_at_the_limit", crowd[:3], **draft, accepted=4, max_model_len=154),
        case("spec_ngram", crowd, **draft, accepted=2, drafter="ngram"),
        case("spec_ngram_few_blocks", crowd, **draft, accepted=3, drafter="ngram", num_blocks=24),
    ]


def mixed() -> list[Case]:
    """All at once, arrivals by chance."""
    sent = arrivals(random.Random(3), 60, apart=7, longest=120, most=80)
    return [
        case(f"mixed_{n}", sent, num_blocks=n, max_num_seqs=12, max_num_batched_tokens=128) for n in (30, 55, 500)
    ]


def odd() -> list[Case]:
    """Aborts in every state, salts, and answers that are the same."""
    aborted = arrivals(random.Random(8), 40, apart=4, longest=200, most=60)
    for i, each in enumerate(aborted):
        if i % 2:
            each["abort_at"] = each["at_step"] + i // 2
    salted = in_turn([request([1000, 150], max_tokens=4) for _ in range(6)])
    for each, salt in zip(salted, ("", "a", "b", "a", "", "b"), strict=True):
        each["salt"] = salt
    twins = [request([1000, 40 + 30 * (i // 4)], max_tokens=90, at_step=(0, 0, 3, 50)[i % 4]) for i in range(12)]
    return [
        case("aborted", aborted, num_blocks=40, max_num_seqs=8, max_num_batched_tokens=128),
        case("salted", salted),
        *(case(f"twins_{n}", twins, num_blocks=n) for n in (12, 24)),
    ]


def arrivals(draw: random.Random, count: int, apart: float, longest: int, most: int) -> list[Case]:
    """Requests that begin with one of five documents, `apart` steps between them on average."""
    step, sent = 0, []
    for i in range(count):
        step += int(draw.expovariate(1 / apart))
        shared = [1000 * draw.randrange(5) + 9, draw.randrange(20, 200)]
        lengths = [6000 + 40 * i, draw.randrange(1, longest)]
        sent.append(request(shared, lengths, max_tokens=draw.randrange(1, most), at_step=step))
    return sent


def drawn(seed: int) -> Case:
    """Any case within reason."""
    draw = random.Random(seed)
    size, turns, whole = draw.choice((1, 4, 16, 32, 128)), draw.random() < 0.4, draw.random() < 0.1
    longest, most = draw.randrange(2, 300), draw.randrange(2, 120)
    sent = arrivals(draw, draw.randrange(5, 60), draw.expovariate(0.2) + 0.01, longest, most)
    for i, each in enumerate(sent):
        if draw.random() < 0.1:
            each["prompt"] = [[each["prompt"][1][0], draw.randrange(1, 4)]]
        if draw.random() < 0.1:
            each["abort_at"] = each["at_step"] + draw.randrange(60)
        if turns and i % 4 == 3:
            sent[i] = request({"turn": i - 3}, *each["prompt"], max_tokens=each["max_tokens"], after=i - 3)
    needed = -(-((1 + turns) * (200 + longest + most) + 10) // size) + 1
    drafts = draw.choice((0, 0, 1, 3, 5))
    return case(
        f"drawn_{seed}", sent, block_size=size, num_blocks=needed + int(draw.expovariate(0.5 / needed)),
        max_num_batched_tokens=4096 if whole else draw.choice((16, 64, 200, 2048)), chunked_prefill=not whole,
        max_num_seqs=draw.randrange(1, 16), prefix_caching=draw.random() < 0.8, async_scheduling=draw.random() < 0.5,
        draft_tokens=drafts, accepted=draw.randrange(drafts + 1), drafter=draw.choice(("model", "ngram", "eagle")),
    )  # fmt: skip
