"""An engine and its LMCache server as one unit, real: exact hits by tier, and deaths that are told."""

import re
from pathlib import Path

import pytest

from pytest_llmperf.process import shm, tree

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(900)]
BOTH = pytest.mark.parametrize("which", ["vllm", pytest.param("sglang", marks=pytest.mark.thorough)])

HEAD = """
import os, threading, time
import pytest
from pytest_llmperf import closed, random_tokens, sglang, vllm
from pytest_llmperf.process import tree

pytestmark = [pytest.mark.cpu]
ENGINES = {"vllm": vllm("tiny", max_model_len=4096), "sglang": sglang("tiny", context_length=4096)}
E = ENGINES["WHICH"]
"""

TIERS = HEAD + """
OWN = {"vllm": ("vllm:external_prefix_cache_hits_total{", "lmcache_mp_lookup_hit_tokens_total"),
       "sglang": ("sglang:cached_tokens_total{", "lmcache_mp_lookup_hit_tokens_total")}["WHICH"]

def test_tiers(perf):
    \"\"\"Prompts of 300 tokens hold one whole chunk of 256 each: 10 prompts, 2560 tokens, from any tier.\"\"\"
    spec = E.with_lmcache(chunk_size=256, l1_size_gb=1, l2_path="kv")
    prompts = random_tokens(input=300, output=4, arrivals=closed(1), requests=10)

    def pages():
        \"\"\"What engine and LMCache say themselves, read without our parser.\"\"\"
        server = perf._execution.session.pool.acquire(spec.on("cpu"))
        text = server.control.client.get("/metrics").text + server.unit.lmcache.client.get("/metrics").text
        named = [line for line in text.splitlines() if line.startswith(OWN) and 'source="device"' not in line
                 and 'source="total"' not in line]
        assert named or OWN[0].startswith("sglang")  # which shows a source from its first hit on
        by_engine = [float(line.split()[-1]) for line in named if not line.startswith("lmcache")]
        by_lmcache = [float(line.split()[-1]) for line in named if line.startswith("lmcache")]
        return sum(by_engine), sum(by_lmcache)

    def hits(**how):
        before = pages() if perf.measurements else (0, 0)
        run = perf.measure(spec, prompts, runs=1, **how)
        perf.check(run, "error_rate == 0")
        grown = tuple(now - then for now, then in zip(pages(), before))
        if len(perf.measurements) > 1:  # before the first, warm-up and the proof count, too
            assert grown == (run.runs[0].counters["external_cache_hits"],) * 2
        counted = run.runs[0].counters
        assert counted["prompt_tokens"] == 3000
        assert counted["prompt_tokens_cached"] == counted["external_cache_hits"]
        tiers = ("external_cache_hits", "lmcache_l1_hit_tokens", "lmcache_l2_hit_tokens", "lmcache_l2_chunks")
        return tuple(counted[name] for name in tiers)

    assert hits() == (0, 0, 0, 0)
    assert hits(keep=("l1", "l2")) == (2560, 2560, 0, 0)
    assert hits(keep=("l2",)) == (2560, 0, 2560, 10)
    assert hits() == (0, 0, 0, 0)
"""


@BOTH
def test_every_tier_hits_to_the_block(run_real, which):
    _, tags = run_real(TIERS.replace("WHICH", which))
    assert tags == {"test_tiers": set()}


RESTARTED = HEAD + """
def test_restarted(perf):
    spec = E.with_lmcache(chunk_size=256, l1_size_gb=1)
    prompts = random_tokens(input=300, output=4, arrivals=closed(1), requests=4)
    perf.measure(spec, prompts, runs=1)
    run = perf.measure(spec, prompts, runs=1, fresh=True, keep=("l1",))
    perf.check(run, "external_cached_tokens == 1024", "lmcache_evictions == 0")
    folder = perf._execution.session.pool.acquire(spec.on("cpu")).unit.lmcache.launch.run_dir
    told = [line for line in (folder / "lmcache.log").read_text().splitlines() if "Unregistered" in line]
    assert len(told) == 1, told
"""


@pytest.mark.thorough
def test_vllm_stop_releases_kv_cache_of_lmcache(run_real, pytester):
    """Or LMCache holds on to its KV cache, on a GPU nearly all of its memory. (SGLang never tells.)"""
    Path(pytester.path, "llmperf.toml").write_text("stop_grace_s = 60\n")  # it takes 5 s, on a busy machine more
    _, tags = run_real(RESTARTED.replace("WHICH", "vllm"))
    assert tags == {"test_restarted": set()}


KILLED = HEAD + """
def processes(engine):
    \"\"\"Each process of the unit by its name, but for Python's resource trackers: they serve nothing.\"\"\"
    found = {"lmcache": engine._handle.unit.lmcache.process.pid, "engine": engine._handle.unit.process.pid}
    for pid in engine.pids:
        with open(f"/proc/{pid}/cmdline") as file:
            if pid not in found.values() and "resource_tracker" not in file.read():
                found[tree.read_stat(pid).name] = pid
    return found

@pytest.mark.engine(E.with_lmcache(l1_size_gb=1))
@pytest.mark.parametrize("victim", VICTIMS)
def test_killed(engine, perf, victim):
    unit = processes(engine)
    assert sorted(unit) == sorted(VICTIMS)
    killed = []
    def kill():
        killed.append(time.monotonic())
        os.kill(unit[victim], 9)
    threading.Timer(6.0, kill).start()
    try:
        perf.measure(engine, random_tokens(input=100, output=200, arrivals=closed(2), requests=400), runs=1)
    finally:
        print(f"told after {time.monotonic() - killed[0]:.1f} s")
"""
VICTIMS = {
    "vllm": ["lmcache", "engine", "VLLM::EngineCor"],
    "sglang": ["lmcache", "engine", "sglang::schedul", "sglang::detoken"],
}


# Each dies with a unit of its own: two minutes an engine.
@pytest.mark.thorough
@BOTH
def test_death_of_engine_or_lmcache_is_reported_within_10_seconds(run_real, which, pytester):
    victims, shared_before = VICTIMS[which], shm.segments()
    result, tags = run_real(KILLED.replace("VICTIMS", repr(victims)).replace("WHICH", which))
    assert tags == {f"test_killed[{victim}]": {"error"} for victim in victims}
    assert result.ret == 10
    documented = [float(match) for match in re.findall(r"told after ([\d.]+) s", result.stdout.str())]
    assert len(documented) >= len(victims)
    assert max(documented) < 10, documented
    result.stdout.fnmatch_lines(["*LMCache server died: signal 9 (SIGKILL)*"])
    result.stdout.fnmatch_lines([f"*The {which} server died: *"])
    pids = [stat.identity.pid for stat in tree.all_stats()]
    left = {segment.file_id for segment in shm.segments() - shared_before}
    assert left <= shm.used_by(pids)  # by others on this machine, that is
    assert not [pid for pid in pids if names(pid, str(pytester.path))]


def names(pid, place):
    """Whether a process names a folder in its command line."""
    try:
        return place in Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False


SILENT = HEAD + """
REPEATS = random_tokens(input=300, output=4, arrivals=closed(1), requests=6)

def test_a_connector_that_serves_and_never_hits(perf):
    perf.measure(vllm("tiny", max_model_len=4096).with_lmcache(in_process=True), REPEATS, runs=1)

def test_an_unknown_option(perf):
    perf.measure(E.with_lmcache(chunk_sise=128), REPEATS, runs=1)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("which", ["vllm"])
def test_lmcache_without_hits_is_an_error_with_spec(run_real, which):
    result, tags = run_real(SILENT.replace("WHICH", which))
    assert tags["test_a_connector_that_serves_and_never_hits"] == {"error"}
    result.stdout.fnmatch_lines(["*LMCache is attached and had no hit: vllm('tiny'*"])
    result.stdout.fnmatch_lines(["*No supported cpu connector found*"])
    result.stdout.fnmatch_lines(["*with_lmcache(chunk_sise=*Did you mean 'chunk_size'*"])
    assert result.ret != 0
