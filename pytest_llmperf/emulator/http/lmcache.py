"""The routes of LMCache's server. The emulated engine serves these routes itself, below /lmcache."""

from __future__ import annotations

from urllib.parse import parse_qs

from pytest_llmperf.emulator.cluster.deployment import Deployment
from pytest_llmperf.emulator.http.metrics_page import CONTENT_TYPE, Page
from pytest_llmperf.emulator.http.replies import Refusal, Reply, json_reply

ROUTES = {"/lmcache/metrics", "/lmcache/cache/clear"}
_TIERS = {"l1": "cpu", "l2": "disk"}


def lmcache_page(deployment: Deployment) -> Reply:
    """LMCache's metrics page: queried tokens, hits by tier, chunks read from disk, and evictions."""
    hits = deployment.tier_hits
    looked_up = sum(tiers.looked_up_tokens for tiers in deployment.tiers)
    counted = {"requested": looked_up, "hit": sum(hits.values())}
    counted |= {f"hit_{tier}": hits.get(name, 0) for tier, name in _TIERS.items()}
    read = counted["hit_l2"] // deployment.tiers[0].chunk_tokens * deployment.config.tensor_parallel
    made_room = sum(store.evictions for store in deployment.stores if store.tier.name == _TIERS["l1"])
    rows = [(f"lookup_{name}_tokens", "Prompt tokens.", value) for name, value in counted.items()]
    rows += [
        ("l2_prefetch_load_completed_chunks", "Chunks that were read from disk.", read),
        ("l1_eviction_loop_ticks", "Looks whether room must be made.", 1 + counted["requested"]),
        ("l1_eviction_loop_triggered", "Times that room was made.", made_room),
    ]
    page = Page()
    for name, text, value in rows:
        page.add(f"lmcache_mp_{name}_total", "counter", text, [({}, value)])
    return Reply(200, page.body(), CONTENT_TYPE)


def clear_tier(deployment: Deployment, query: str) -> Reply:
    """POST /lmcache/cache/clear?tier=l1: empties that tier; one that is not there is empty."""
    (tier,) = parse_qs(query).get("tier", [""])
    if tier not in _TIERS:
        return Refusal(400, f"tier must be one of {', '.join(_TIERS)}", "Bad Request").reply()
    if _TIERS[tier] in deployment.tier_hits:
        deployment.clear_tiers(_TIERS[tier])
    return json_reply({"cleared": tier})
