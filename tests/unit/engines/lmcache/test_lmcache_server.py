"""LMCache's server as part of a unit: counters, tiers, the death of the server, and the check for cache hits."""

import json
import random
from types import SimpleNamespace

import httpx
import pytest

from pytest_llmperf.clock import VirtualClock
from pytest_llmperf.engines.lmcache import server as lmcache_module
from pytest_llmperf.engines.lmcache.proof import prove_hits
from pytest_llmperf.engines.lmcache.server import LMCacheLaunch, LMCacheServer, start_lmcache
from pytest_llmperf.engines.process.environment import Environment
from pytest_llmperf.engines.spec import vllm
from pytest_llmperf.errors import EngineError, ServerDied, WrongServer

SPEC = vllm("m").with_lmcache(chunk_size=4, l2_path="kv")
BY_HAND = {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}


class FakeStore:
    """What LMCache's HTTP side answers. `clears_needed`: chunks are being stored that often."""

    def __init__(self):
        self.held, self.clears_needed, self.paths, self.chunk_size = 100, 1, [], 4
        self.counted, self.evicts = {"requested": 12, "hit": 8}, ""

    def answer(self, request):
        self.paths.append(request.url.path)
        if request.url.path == "/cache/clear":
            self.clears_needed -= 1
            self.held = 0 if self.clears_needed <= 0 else self.held
            return httpx.Response(200, json={"status": "ok"})
        pages = {
            "/metrics": httpx.Response(200, text=(
                "".join(f'lmcache_mp_lookup_{name}_tokens_total{{cache_salt=""}} {value}\n'
                        for name, value in self.counted.items()) +
                f"{self.evicts}"
                + ("" if self.held is None else f"lmcache_mp_l1_memory_usage_bytes {self.held}\n")
            )),
            "/config": httpx.Response(200, json={"mp": {"chunk_size": self.chunk_size}}),
            "/version": httpx.Response(200, text='"0.5.6"'),
        }  # fmt: skip
        return pages.get(request.url.path, httpx.Response(503, text="not yet"))


@pytest.fixture
def store():
    return FakeStore()


@pytest.fixture
def launch(tmp_path):
    ports = tuple(SimpleNamespace(port=port, close=lambda: None) for port in (5001, 5002))
    return LMCacheLaunch(SPEC.lmcache, "cpu", Environment(("/v/bin/python",), True, None, "/v"), {}, tmp_path,
                         tmp_path / "run", ports)


@pytest.fixture
def started(monkeypatch, fake_process):
    """Launches whose process is `fake_process`."""
    started = []
    monkeypatch.setattr(lmcache_module, "Supervised", SimpleNamespace(
        start=lambda spec, _clock: started.append(spec) or fake_process))
    return started


@pytest.fixture
def lmcache(store, launch, tmp_path, fake_process):
    server = LMCacheServer(launch, fake_process)
    server.client = httpx.Client(base_url="http://l", transport=httpx.MockTransport(store.answer))
    (tmp_path / "kv").mkdir()
    (tmp_path / "kv" / "m@0x1@0@ab.data").touch()
    return server


@pytest.mark.parametrize("place", ["run/lmcache.yaml", "kv"])
def test_unwritable_lmcache_files_are_an_error_before_start(launch, started, tmp_path, place):
    """A folder where the file belongs, or a file where its disk tier belongs: the same OSError as a full disk's."""
    if place == "kv":
        (tmp_path / "kv").touch()
    else:
        (tmp_path / place).mkdir(parents=True)
    with pytest.raises(EngineError, match=r"LMCache was not started: .*yaml and .*kv cannot be written .*df -h"):
        start_lmcache(launch, VirtualClock(), 1.0)
    assert started == []


def test_interrupt_after_lmcache_start_stops_lmcache(launch, started, fake_process, monkeypatch):
    monkeypatch.setattr(httpx, "Client", lambda **_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        start_lmcache(launch, VirtualClock(), 1.0)
    assert (len(started), fake_process.stopped) == (1, 1)


def test_lmcache_counters_are_added_to_engine_counters(make_server, lmcache):
    counters = make_server(SPEC, lmcache=lmcache).counters.read()
    assert counters["prompt_tokens"] == 0
    assert (counters["lmcache_lookup_tokens"], counters["lmcache_hit_tokens"], counters["lmcache_l2_chunks"]) == (
        12,
        8,
        0,
    )


def test_lmcache_tier_counters_are_missing_if_version_does_not_count_by_tier(lmcache, store):
    """0.5.4 looks up, and says how many tokens it found, not where."""
    tiers = {"lmcache_l1_hit_tokens", "lmcache_l2_hit_tokens"}
    assert not tiers & lmcache.counters().keys()
    store.counted |= {"hit_l1": 8, "hit_l2": 0}
    assert {name: lmcache.counters()[name] for name in tiers} == {
        "lmcache_l1_hit_tokens": 8, "lmcache_l2_hit_tokens": 0}
    store.counted = {}  # before the first lookup nothing shows what this version counts
    assert {name: lmcache.counters()[name] for name in tiers} == dict.fromkeys(tiers, 0)


@pytest.mark.parametrize(("shown", "evictions"), [
    ("", None),
    ("lmcache_mp_l1_eviction_loop_ticks_total 7\n", 0),
    ("lmcache_mp_l1_eviction_loop_ticks_total 7\nlmcache_mp_l1_eviction_loop_triggered_total 2\n", 2),
], ids=["unknown", "none", "two"])
def test_lmcache_evictions_are_known_only_if_eviction_loop_runs(lmcache, store, shown, evictions):
    store.evicts = shown
    assert lmcache.counters().get("lmcache_evictions") == evictions


def test_lmcache_clear_fails_if_l1_size_is_unknown(lmcache, store):
    store.held, store.clears_needed = None, 10_000
    with pytest.raises(EngineError, match="L1 does not say what it holds after"):
        lmcache.clear({"l1"}, VirtualClock())


def test_lmcache_facts_include_version_and_refuse_other_chunk_size(make_server, lmcache, store):
    assert make_server(SPEC, lmcache=lmcache).facts["lmcache.version"] == "0.5.6"
    store.chunk_size = 256
    with pytest.raises(WrongServer, match="chunks of 4 tokens and uses 256"):
        lmcache.facts()


@pytest.mark.parametrize(
    ("keep", "held", "files", "emptied"),
    [((), 0, 0, True), (("l1",), 100, 0, True), (("l2",), 0, 1, True), (("engine", "l1", "l2"), 100, 1, False)],
)
def test_each_tier_is_emptied_or_kept(make_server, fake_engine, lmcache, store, keep, held, files, emptied):
    assert make_server(SPEC, lmcache=lmcache, clock=VirtualClock()).reset_cache(keep) is emptied
    assert store.held == held
    assert len(list(lmcache.launch.disk.iterdir())) == files
    assert ("/reset_prefix_cache" in fake_engine.paths) is emptied


def test_lmcache_clear_repeats_until_l1_is_empty_or_time_ends(lmcache, store):
    store.clears_needed = 3
    lmcache.clear({"l1"}, VirtualClock())
    assert store.paths.count("/cache/clear") == 3
    store.held, store.clears_needed = 100, 10_000
    with pytest.raises(EngineError, match="L1 still holds 100 bytes"):
        lmcache.clear({"l1"}, VirtualClock())


def test_lmcache_death_makes_server_unit_dead(make_server, lmcache, fake_process):
    server = make_server(SPEC, process=type(fake_process)(), lmcache=lmcache)
    server.unit.check_alive()
    assert not server.unit.wait_death(0)
    fake_process.ended = "signal 9 (SIGKILL)"
    assert server.unit.wait_death(0)
    with pytest.raises(ServerDied, match=r"The LMCache server died: signal 9 \(SIGKILL\)"):
        server.unit.check_alive()


def test_both_are_stopped_even_where_the_engine_resists(make_server, lmcache, fake_process):
    engine = type(fake_process)()
    engine.stop = lambda _grace_s: (_ for _ in ()).throw(EngineError("resists"))
    with pytest.raises(EngineError, match="resists"):
        make_server(SPEC, process=engine, lmcache=lmcache).stop(1.0)
    assert fake_process.stopped == 1


def test_lmcache_failures_raise_error_with_cause(make_server, lmcache, fake_process):
    server = make_server(SPEC, lmcache=lmcache)
    lmcache.client = httpx.Client(base_url="http://l", transport=httpx.MockTransport(lambda _: httpx.Response(503)))
    with pytest.raises(EngineError, match="answered GET /metrics with 503"):
        lmcache.counters()
    assert not server.unit.hangs

    def refused(request):
        raise httpx.ConnectError("refused", request=request)

    lmcache.client = httpx.Client(base_url="http://l", transport=httpx.MockTransport(refused))
    with pytest.raises(EngineError, match="hangs: GET /metrics"):
        lmcache.counters()
    assert server.unit.hangs
    fake_process.ended = "exit code 1"
    with pytest.raises(ServerDied, match="exit code 1"):
        lmcache.counters()


def pages(fake_engine, hits):
    """The engine's pages from now on, with so many external hits one after the other."""
    left = iter(hits)

    def answer(request):
        if request.url.path == "/metrics":
            fake_engine.answers["/metrics"] = httpx.Response(
                200, text=f"vllm:external_prefix_cache_hits_total {next(left, 0)}\n"
            )
        return fake_engine.answer(request)

    return SimpleNamespace(answer=answer)


def test_repeated_prompt_proves_lmcache_hits(make_server, fake_engine):
    engine = pages(fake_engine, [0, 0, 0, 0, 8])  # with its facts, then before and after each of two tries
    prove_hits(make_server(SPEC, engine=engine, clock=VirtualClock()), random.Random(1), 60.0)
    assert fake_engine.paths.count("/v1/completions") == 3  # stored, missed while storing went on, hit


def test_lmcache_without_hits_is_an_error_with_evidence(make_server, fake_engine, fake_process):
    server = make_server(SPEC, engine=pages(fake_engine, []), process=fake_process, clock=VirtualClock())
    with pytest.raises(EngineError, match=r"LMCache is attached and had no hit: vllm\('m'\).* 9 tokens") as caught:
        prove_hits(server, random.Random(1), 60.0)
    assert caught.value.evidence is not None


def tokens_sent(make_server, fake_engine, spec, max_model_len=None):
    """The numbers of tokens in the prompts that check for LMCache hits."""
    sent = []

    def answer(request):
        if request.url.path == "/v1/completions":
            sent.append(len(json.loads(request.content)["prompt"]))
        return inner.answer(request)

    inner = pages(fake_engine, [0, 0, 8])
    if max_model_len is not None:
        config = {"vllm_config": {"model_config": {"max_model_len": max_model_len}}}
        fake_engine.answers["/server_info"] = httpx.Response(200, json=config)
    prove_hits(make_server(spec, engine=SimpleNamespace(answer=answer), clock=VirtualClock()), random.Random(1), 60.0)
    return set(sent)


@pytest.mark.parametrize(("max_model_len", "tokens"), [(None, 9), (10, 9), (9, 5), (6, 5)])
def test_verification_prompt_fits_max_model_len(make_server, fake_engine, max_model_len, tokens):
    assert tokens_sent(make_server, fake_engine, SPEC, max_model_len) == {tokens}


def test_model_too_short_for_whole_chunks_is_refused(make_server, fake_engine):
    with pytest.raises(EngineError, match=r"whole chunks of 4 tokens, and vllm.* takes 5 with .*Lower chunk_size"):
        tokens_sent(make_server, fake_engine, SPEC, 5)


@pytest.mark.parametrize(
    ("spec", "tokens"),
    [
        (vllm("m", kv_transfer_config=BY_HAND), 513),
        (vllm("m", kv_transfer_config=BY_HAND, env={"LMCACHE_CHUNK_SIZE": "1024"}), 2049),
        (vllm("m", env={"LMCACHE_CHUNK_SIZE": "16"}).with_lmcache(in_process=True, chunk_size=4), 33),
        (vllm("m", env={"LMCACHE_CHUNK_SIZE": "16"}).with_lmcache(chunk_size=4), 9),
    ],
    ids=["default", "by hand", "in the engine's process", "a server beside it"],
)
def test_verification_prompt_has_whole_lmcache_chunks(make_server, fake_engine, spec, tokens):
    assert tokens_sent(make_server, fake_engine, spec) == {tokens}


@pytest.mark.parametrize(("left_s", "given_s"), [(300.0, 300.0), (-1.0, 10.0)])
def test_slow_first_verification_prompt_leaves_full_time_for_storing(
    make_server, fake_engine, left_s, given_s
):
    """The first prompt is slow because kernels compile. The time limit for storing starts after this prompt."""
    clock, inner, timeouts = VirtualClock(), pages(fake_engine, [0, 0, 0, 0, 8]), []

    def answer(request):
        if request.url.path == "/v1/completions":
            clock.sleep_ns(0 if timeouts else 30_000_000_000)
            timeouts.append(request.extensions["timeout"]["read"])
        return inner.answer(request)

    prove_hits(make_server(SPEC, engine=SimpleNamespace(answer=answer), clock=clock), random.Random(1), left_s)
    assert timeouts == [given_s] * 3


@pytest.mark.parametrize(
    ("ended", "error", "message"),
    [
        ("signal 11 (SIGSEGV)", ServerDied, r"died: signal 11"),
        (None, EngineError, r"hangs: .* 9 for LMCache.*ReadTimeout"),
    ],
)
def test_an_engine_that_does_not_survive_the_proof_is_no_http_exception(
    make_server, fake_engine, fake_process, ended, error, message
):
    server = make_server(SPEC, process=fake_process, clock=VirtualClock())
    fake_engine.answers["/v1/completions"] = httpx.ReadTimeout("timed out")
    fake_process.ended = ended
    with pytest.raises(error, match=message) as caught:
        prove_hits(server, random.Random(1), 60.0)
    assert caught.value.evidence is not None


def test_a_key_that_lmcache_ignores_is_an_error(make_server, fake_process, tmp_path):
    log = tmp_path / "server.log"
    log.write_text("INFO fine\nLMCache WARNING: Unknown configuration key: storage\n")
    evidence = SimpleNamespace(log_path=str(log))
    fake_process.evidence = lambda: evidence
    with pytest.raises(EngineError, match=r"ignores a part of its configuration: .*key: storage"):
        prove_hits(make_server(SPEC, process=fake_process, clock=VirtualClock()), random.Random(1), 60.0)
