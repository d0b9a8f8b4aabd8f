"""The page as text: whole, escaped, and honest about what is missing."""

import base64
import gzip
import re
from dataclasses import replace

import pytest

from pytest_llmperf import CheckResult, Verdict
from pytest_llmperf.baseline.store import Store
from pytest_llmperf.baseline.text import encode
from pytest_llmperf.metrics.units import Unit
from pytest_llmperf.report.html import write_report
from pytest_llmperf.results.baseline import Baseline, StoredMeasurement, StoredSession
from pytest_llmperf.results.check import Stated
from pytest_llmperf.results.conditions import formulas_of
from pytest_llmperf.results.profile import Profile
from pytest_llmperf.results.writer import write_test
from pytest_llmperf.slo.model import Comparison
from pytest_llmperf.telemetry.torch_trace import Breakdown

TEST = "tests/test_a.py::test_prefixes_come_from_the_cache[h200]"
HOSTILE = '</script><img src=x onerror=alert(1)> " \' & \ud800'


@pytest.fixture
def page(tmp_path):
    def make():
        path = write_report([tmp_path / "run"], Store(tmp_path / "baselines").read, tmp_path / "out")
        return path.read_text(encoding="utf-8")

    return make


def packed(text):
    return [
        gzip.decompress(base64.b64decode(packed_text)).decode()
        for packed_text in re.findall(r'data-packed="([^"]*)"', text)
    ]


def test_report_page_shows_claim_in_words_verdict_and_reason(tmp_path, page, measurement_of, measurement):
    check = CheckResult("ttft_p50(b) / ttft_p50(a) >= 3", Verdict.FAIL, "ttft_p50", Unit.RATIO, Comparison.AT_LEAST, 3,
                        1.2, cause=Stated("too near"))
    write_test(tmp_path / "run", TEST, [measurement], [check])
    text = page()
    for said in ("Prefixes come from the cache", "Median time to first token of B: at least 3 times that of A",
                 "too near", "1.2×", TEST):  # fmt: skip
        assert said in text


def test_search_on_report_page_has_proven_rate_as_measured_value(tmp_path, page, measurement):
    """The headroom rests on the proven rate, so the value beside it is the proven rate."""
    check = CheckResult("max_rate >= 8/s", Verdict.PASS, "max_rate", Unit.REQUESTS_PER_S, Comparison.AT_LEAST, 8, 22.6,
                        facts={"proven_rate": 16.0})
    write_test(tmp_path / "run", TEST, [measurement], [check])
    text = page()
    assert 'data-label="measured" class="number">16/s, proven' in text
    assert "22.6" not in text


def test_report_page_loads_no_external_resources(tmp_path, page, measurement):
    write_test(tmp_path / "run", TEST, [measurement], [])
    text = page()
    for made in (text, *packed(text)):
        assert not re.findall(r'(?:src|href)\s*=\s*"(?!data:)[^"#]|https?:|@import|url\(', made)


def test_html_in_names_and_messages_is_escaped(tmp_path, page, measurement_of):
    measured = measurement_of([], side="")
    object.__setattr__(measured, "engine", HOSTILE)
    object.__setattr__(measured, "conditions", {"hardware": HOSTILE, HOSTILE: HOSTILE})
    texts = dict.fromkeys(("limit", "measured", "interval", "n", "reason"), HOSTILE)  # as older files hold them
    check = CheckResult(HOSTILE, Verdict.FAIL, HOSTILE, cause=Stated(HOSTILE), facts={"texts": texts})
    write_test(tmp_path / "run", f"t.py::test_x[{HOSTILE}]", [measured], [check], complete=False, error=HOSTILE)
    text = page()
    (content,) = packed(text)
    for made in (text, content):
        assert "<img" not in made
    assert text.count("</script>") == 2  # the page's own


def test_report_page_shows_server_command_and_end_of_log(tmp_path, page, measurement):
    write_test(tmp_path / "run", TEST, [measurement], [])
    server = tmp_path / "run/servers/01-vllm-1"
    server.mkdir(parents=True)
    (server / "command.txt").write_text("vllm serve m --api-key ***\n")
    (server / "server.log").write_text("".join(f"line {number} \x1b[31mred\x1b[0m\n" for number in range(100)))
    (content,) = packed(page())
    assert "vllm serve m --api-key ***" in content
    assert "line 99 red" in content
    assert "line 39 " not in content


def test_corrupt_requests_file_removes_only_charts(tmp_path, page, measurement):
    write_test(tmp_path / "run", TEST, [measurement], [CheckResult("x", Verdict.PASS)])
    for path in (tmp_path / "run/requests").iterdir():
        path.write_bytes(b"no")
    text = page()
    assert "No charts: " in text
    assert "<figure" not in packed(text)[0]


def test_unreadable_baseline_is_reported(tmp_path, page, measurement_of, measurement):
    measured = measurement_of(list(measurement.runs[0].records), baseline="", primaries=("ttft_p50",))
    write_test(tmp_path / "run", TEST, [measured], [])
    assert "No baseline is stored for measured" in page()
    stored = tmp_path / "baselines/unknown/a/test_prefixes_come_from_the_cache-h200.json"
    stored.parent.mkdir(parents=True)
    stored.write_text("{")
    assert "The baseline of measured cannot be read: " in page()


def test_report_page_shows_build_beside_stored_builds(tmp_path, page, measurement_of, measurement):
    measured = measurement_of(list(measurement.runs[0].records), baseline="", primaries=("ttft_p50",))
    now = measured.conditions | {"engine.version": "0.32.0"}
    write_test(tmp_path / "run", TEST, [replace(measured, conditions=now)], [])
    older, newer = (StoredSession(f"2026010{day}T000000Z-00000{day}", "2026-01-01", None, "host", None, day == 1,
                                  ((0, 1),), {"ttft_p50": (50.0,)}, differs)
                    for day, differs in ((1, {"engine.version": "<0.25>"}), (2, {})))
    fingerprint = measured.conditions | {"engine.version": "0.26.0", "engine.dtype": "bfloat16"}
    stored = StoredMeasurement(fingerprint, (older, newer), ("ttft_p50",), formulas_of(["ttft_p50"]))
    name = "a/test_prefixes_come_from_the_cache-h200"
    path = tmp_path / f"baselines/unknown/{name}.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(encode(Baseline(TEST, {"": stored})))
    text = page()
    assert "measured was measured with another build than its baseline" in text
    assert '<code>engine.version</code></td><td data-label="stored" class="value">&lt;0.25&gt;, 0.26.0</td>' in text
    assert ('<code>engine.dtype</code></td><td data-label="stored" class="value">bfloat16</td>\n'
            '<td data-label="now" class="value">absent</td>') in text


def test_report_page_shows_session_facts_if_available(tmp_path, page, measurement):
    write_test(tmp_path / "run", TEST, [measurement], [])
    (tmp_path / "run/session.json").write_text('{"schema": 1, "commit": "abc123", "tests": ["not shown"]}')
    text = page()
    assert "<dt>commit</dt><dd>abc123</dd>" in text
    assert "not shown" not in text


def test_failed_report_keeps_previous_page(tmp_path, page, measurement):
    written = write_test(tmp_path / "run", TEST, [measurement], [])
    previous_page = page()
    written.write_text("{")
    with pytest.raises(Exception, match="no JSON"):
        page()
    assert (tmp_path / "out/report.html").read_text() == previous_page
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["report.html"]


def test_report_page_links_traces_and_shows_shares_of_each_rank(tmp_path, page, measurement):
    ranks = (Breakdown("gpu", 100.0, 30.0, 20.0, 10.0, 15.0, 4, 12.0, 3.0, "nccl"),
             Breakdown("gpu", 200.0, 60.0, 40.0, 30.0, 30.0, 4, 30.0, 7.0, "nccl"))
    files = ("profiles/x.1.rank0.trace.json.gz", "profiles/x.1.rank1.trace.json.gz")
    profiles = [Profile(1, "vllm('m')", files, ranks, nsys="profiles/x.1.nsys-rep"),
                Profile(2, "vllm('n')", problem="no <profiler>")]
    write_test(tmp_path / "run", TEST, [replace(measurement, side="a"), replace(measurement, side="b")], [],
               profiles=profiles)
    text = page()
    assert 'href="../run/profiles/x.1.rank1.trace.json.gz"' in text
    assert text.count('href="../run/profiles/x.1.nsys-rep"') == 1
    rows = re.findall(r">trace of rank (\d)</a></td>(.*?)</tr>", text)
    shares = [(rank, re.findall(r">([\d.]+) %<", cells)) for rank, cells in rows]
    assert shares == [("0", ["30.0", "20.0", "10.0", "15.0", "25.0", "12.0"]),
                      ("1", ["30.0", "20.0", "15.0", "15.0", "20.0", "15.0"])]
    assert "Where the traced time went: A" in text
    assert "no &lt;profiler&gt;" in text
