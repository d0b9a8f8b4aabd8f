"""Differences between stored releases, and what they touch in suites."""

from pathlib import Path

import pytest

from pytest_llmperf.engines.releases.rehearsal import ON_A_PAGE, grouped, rehearse, uses_of, uses_of_package
from pytest_llmperf.errors import UsageError
from pytest_llmperf.releases.changes import DEFAULT, GONE, NEW, VALUES, changed_defaults, changes
from pytest_llmperf.releases.stored import ENGINES, Release, build_of, release, versions

EMPTY = {"flags": {}, "metrics": {}, "variables": {}, "routes": {}, "sources": {}, "packages": {}}
VLLM = "vllm", "0.26.0", "0.33.0"
SGLANG = "sglang", "0.5.15", "0.5.23"


def between(engine, older, newer):
    return changes(release(engine, older), release(engine, newer))


@pytest.mark.parametrize(("pair", "section", "kind", "name", "detail"), [
    (SGLANG, "flags", GONE, "--cuda-graph-max-bs", "cuda_graph_max_bs_decode=…"),
    (VLLM, "flags", GONE, "--calculate-kv-scales", ""),
    (VLLM, "flags", GONE, "--max-num-partial-prefills", ""),
    (VLLM, "flags", GONE, "--max-long-partial-prefills", ""),
    (VLLM, "flags", GONE, "--override-attention-dtype", ""),
    (SGLANG, "flags", GONE, "--enable-expert-distribution-metrics", 'expert_balancedness_report_mode="prometheus"'),
    (SGLANG, "variables", GONE, "SGLANG_ENABLE_EPLB_BALANCEDNESS_METRIC",
     'expert_balancedness_report_mode="prometheus"'),
    (VLLM, "flags", NEW, "--prefix-cache-retention-interval", "0"),
    (VLLM, "variables", GONE, "VLLM_PREFIX_CACHE_RETENTION_INTERVAL", "prefix_cache_retention_interval=…"),
    (VLLM, "flags", NEW, "--max-num-queued-reqs", "unset"),
    (VLLM, "metrics", NEW, "vllm:admission_rejections", "reason"),
    (VLLM, "sources", VALUES, "get_batch_defaults", "max_num_batched_tokens"),
    (VLLM, "sources", VALUES, "resolve_kv_cache_block_sizes", "hybrid models"),
    (VLLM, "metrics", NEW, "vllm:prompt_tokens_cached_by_source", "source"),
    (VLLM, "metrics", NEW, "vllm:kv_offload_tiering_read_bytes", "unset"),
    (VLLM, "metrics", NEW, "vllm:request_num_preemptions", "histogram"),
    (SGLANG, "metrics", NEW, "sglang:hicache_backup_bytes_total", "counter"),
    (SGLANG, "metrics", NEW, "sglang:dp_attention_token_imbalance_ratio", "histogram"),
    (SGLANG, "metrics", NEW, "sglang:startup_time_seconds", "gauge"),
    (VLLM, "packages", VALUES, "torch", "2.14.0"),
    (VLLM, "variables", DEFAULT, "VLLM_ALLREDUCE_USE_FLASHINFER", "'1'"),
    (SGLANG, "routes", GONE, "GET /get_load", ""),
])  # fmt: skip
def test_known_changes_of_engines_are_found_in_stored_releases(pair, section, kind, name, detail):
    found = [each for each in between(*pair) if (each.section, each.kind, each.name) == (section, kind, name)]
    assert len(found) == 1
    assert detail in f"{found[0].instead} {found[0].after}"


def test_equal_releases_have_no_change():
    assert between("vllm", "0.33.0", "0.33.0") == []


def test_flag_that_is_kept_under_a_further_name_is_not_gone():
    older = Release("vllm", "1", **EMPTY | {"flags": {"--short": {"type": "int"}}})
    newer = Release("vllm", "2", **EMPTY | {"flags": {"--longer": {"type": "int", "names": ["--short"]}}})
    assert [(each.kind, each.name) for each in changes(older, newer)] == [(NEW, "--longer")]


def test_switch_lost_with_its_opposite_is_one_change():
    older = Release("vllm", "1", **EMPTY | {"flags": {"--enable-x": {"action": "boolean", "default": True}}})
    assert [(each.kind, each.name) for each in changes(older, Release("vllm", "2", **EMPTY))] == [(GONE, "--enable-x")]


def test_key_of_a_configuration_is_compared_alone():
    older, newer = (Release("vllm", version, **EMPTY | {"flags": {"--c": {"default": {"a": 1, **more}}}})
                    for version, more in (("1", {"b": 2, "old": 1}), ("2", {"b": 3, "new": 1})))
    assert [(each.kind, each.name, each.before, each.after) for each in changes(older, newer)] == [
        (DEFAULT, "--c.b", "2", "3"), (NEW, "--c.new", "unset", "1"), (GONE, "--c.old", "1", "unset")]


def test_changed_defaults_hold_new_flags_that_act_without_being_set():
    names = {each.name for each in changed_defaults(release("vllm", "0.26.0"), release("vllm", "0.33.0"))}
    assert {"--prefix-cache-retention-interval", "--disable-cascade-attn", "VLLM_MOE_SKIP_PADDING"} <= names
    assert not {"--max-num-queued-reqs", "--enable-scale-out"} & names


@pytest.fixture
def suite(tmp_path):
    def suite(body):
        (tmp_path / "test_it.py").write_text(body)
        return uses_of([tmp_path], frozenset({"random_tokens"}))

    return suite


NO_PACKAGE = uses_of_package("nothing", Path("nowhere"))


def texts(pair, tests, package=NO_PACKAGE):
    return [str(touch) for touch in rehearse(between(*pair), tests, package)[0]]


def test_removed_flag_names_the_test_that_uses_it_through_a_constant(suite):
    tests = suite("OLD = {'cuda_graph_max_bs': 8}\ndef engine():\n    return sglang('m', **OLD)\n"
                  "def test_a(perf):\n    perf.measure(engine())\ndef test_b(perf):\n    sglang('m')\n")
    expected = ("The flag --cuda-graph-max-bs is gone. Write cuda_graph_max_bs_decode=…. [test_it.py::test_a]")
    assert expected in texts(SGLANG, tests)


def test_removed_variable_and_changed_default_name_their_tests(suite):
    tests = suite("def test_a(perf):\n    vllm('m', env={'VLLM_TRITON_ATTN_USE_TD': '1'}, mamba_cache_mode='all')\n"
                  "def test_b(perf):\n    vllm('m')\n")
    found = texts(VLLM, tests)
    assert any(each.startswith("The variable VLLM_TRITON_ATTN_USE_TD is gone.") and "[test_it.py::test_a]" in each
               for each in found)
    default = next(each for each in found if "mamba_cache_mode was" in each)
    assert default == ("The default of mamba_cache_mode was 'none' and is unset. Write mamba_cache_mode='none' to keep "
                       "the older one. [test_it.py::test_b]")


def test_keyword_of_a_workload_is_no_flag(suite):
    tests = suite("def test_a(perf):\n    random_tokens(calculate_kv_scales=1)\n    vllm('m')\n")
    assert not any("calculate-kv-scales" in each for each in texts(VLLM, tests))


def test_what_the_package_reads_touches_every_test(suite):
    tests = suite("def test_a(perf):\n    sglang('m')\n")
    package = uses_of_package("sglang", ENGINES / "sglang")
    assert any(each.startswith("The metric sglang:prompt_tokens_total has changed") and each.endswith("[all 1 tests]")
               for each in texts(SGLANG, tests, package))


def test_shipped_package_writes_nothing_that_the_newest_releases_lack():
    for engine in ("vllm", "sglang"):
        oldest, newest = (release(engine, versions(engine)[at]) for at in (0, -1))
        package = uses_of_package(engine, ENGINES / engine)
        touches, _ = rehearse(changes(oldest, newest), [package], package)
        assert [str(each) for each in touches if each.breaks] == []


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_every_metric_that_an_adapter_reads_is_one_of_the_newest_release(engine):
    read = {word for word in uses_of_package(engine, ENGINES / engine).words
            if word.startswith(f"{engine}:") and not word.endswith(":")}
    exported = {ON_A_PAGE.sub("", name) for name in release(engine, versions(engine)[-1]).metrics}
    assert len(read) > 10
    assert {name for name in read if ON_A_PAGE.sub("", ON_A_PAGE.sub("", name)) not in exported} == set()


def test_every_change_is_in_one_of_the_two_lists(suite):
    tests = suite("def test_a(perf):\n    vllm('m', calculate_kv_scales=True)\n")
    found = between(*VLLM)
    touches, others = rehearse(found, tests, NO_PACKAGE)
    assert {touch.change for touch in touches} | set(others) == set(found)
    assert len(others) == sum(len(lines) for _, lines in grouped(others))


def test_missing_suite_and_broken_suite_are_refused(tmp_path):
    with pytest.raises(UsageError, match=r"nowhere: not there\. Name the folder of the suites\."):
        uses_of([tmp_path / "nowhere"], frozenset())
    (tmp_path / "test_x.py").write_text("def (")
    with pytest.raises(UsageError, match="cannot be read as Python"):
        uses_of([tmp_path], frozenset())


@pytest.mark.parametrize(("version", "stored"), [("0.33.0", "0.33.0"), ("0.32.0+cpu", "0.32.0"),
                                                 ("0.32.0+emulated", "0.32.0"), ("0.30.0", None), (None, None)])
def test_build_belongs_to_the_stored_version_with_its_numbers(version, stored):
    known = build_of("vllm", version)
    assert (known.version if known else None) == stored
