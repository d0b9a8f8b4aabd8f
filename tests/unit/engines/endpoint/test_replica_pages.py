"""Pages of replicas: listed, in DNS, or scraped by a Prometheus server. Unequal replicas are refused before load."""

from contextlib import nullcontext

import httpx
import pytest

from pytest_llmperf.clock import VirtualClock
from pytest_llmperf.engines.endpoint.replica_pages import ReplicaPages
from pytest_llmperf.engines.endpoint.spec import endpoint
from pytest_llmperf.errors import EngineError, WrongServer

PROMETHEUS = 'prometheus+http://p:9090/x?match={job="vllm"}'


class Replicas:
    """Answers for hosts. `pages` has the page of each host and port, `names` the addresses of each name."""

    def __init__(self):
        self.pages, self.versions, self.names = {}, {}, {}
        self.clock = VirtualClock()

    def reader(self, *addresses):
        return ReplicaPages(addresses, self.client, self.clock, self.resolve)

    def client(self, origin):
        return httpx.Client(base_url=origin, transport=httpx.MockTransport(self.answer))

    def resolve(self, host, _port):
        if host not in self.names:
            raise OSError(-2, "Name or service not known")
        return self.names[host]

    def answer(self, request):
        place = request.url.netloc.decode()
        if request.url.path == "/version" and place in self.versions:
            return httpx.Response(200, json={"version": self.versions[place]})
        if request.url.path != "/metrics":
            return httpx.Response(404)
        page = self.pages.get(place, httpx.ConnectError("refused"))
        if isinstance(page, Exception):
            raise page
        return httpx.Response(200, text=page)


def page(model="m", finished=1):
    return f'vllm:request_success_total{{model_name="{model}"}} {finished}\n'


@pytest.fixture
def replicas():
    return Replicas()


def test_listed_page_that_cannot_be_read_is_silent_with_the_reason(replicas):
    replicas.pages = {"a:1": page(), "b:1": "<html>"}
    reading = replicas.reader("http://a:1", "http://b:1", "http://c:1").read()
    assert list(reading.pages) == ["a:1"]
    assert reading.silent["b:1"].startswith("/metrics is not Prometheus text")
    assert reading.silent["c:1"] == "ConnectError: refused"


def test_name_is_resolved_at_each_reading(replicas):
    replicas.pages = {"10.0.0.5:8000": page(), "10.0.0.6:8000": page()}
    replicas.names = {"vllm": ["10.0.0.5"]}
    reader = replicas.reader("dns://vllm:8000/metrics")
    assert list(reader.read().pages) == ["10.0.0.5:8000"]
    replicas.names = {"vllm": ["10.0.0.5", "10.0.0.6"]}
    assert list(reader.read().pages) == ["10.0.0.5:8000", "10.0.0.6:8000"]


@pytest.mark.parametrize(
    ("addresses", "message"),
    [
        (["http://a:1", "http://c:1"], r"page of c:1 cannot be read: ConnectError: refused. Nothing was measured"),
        (["dns://nobody:8000"], r"metrics page of nobody cannot be read: the name has no address"),
        (["dns://empty:8000"], r"No replica has an address in metrics=.*Nothing was measured. Start a replica"),
    ],
)
def test_address_without_an_answer_is_refused_before_load(replicas, addresses, message):
    replicas.pages, replicas.names = {"a:1": page()}, {"empty": []}
    with pytest.raises(EngineError, match=message):
        replicas.reader(*addresses).check()


def test_replicas_of_different_models_are_refused_with_both_names(replicas):
    replicas.pages = {"a:1": page("llama"), "b:1": page("qwen")}
    with pytest.raises(WrongServer, match=r"replicas serve different models: a:1 llama, b:1 qwen"):
        replicas.reader("http://a:1", "http://b:1").check()


def test_replicas_of_different_versions_are_refused_with_both_versions(replicas):
    replicas.pages = {"a:1": page(), "b:1": page()}
    replicas.versions = {"a:1": "0.26.0", "b:1": "0.32.0"}
    with pytest.raises(WrongServer, match=r"replicas run different versions: a:1 0.26.0, b:1 0.32.0"):
        replicas.reader("http://a:1", "http://b:1").check()


def test_equal_replicas_and_no_address_are_accepted(replicas):
    replicas.pages = {"a:1": page(), "b:1": page()}
    replicas.versions = {"a:1": "0.26.0", "b:1": "0.26.0"}
    reader = replicas.reader("http://a:1", "http://b:1")
    reader.check()
    assert reader.read().pages.keys() == {"a:1", "b:1"}
    replicas.reader().check()


class Scraper(Replicas):
    """A Prometheus server that scrapes each target every 2 s of the virtual clock. Its clock starts at 1000 s."""

    def __init__(self):
        super().__init__()
        self.targets = {"10.0.0.5:8000": {}, "10.0.0.6:8000": {"pod": "vllm-1"}}
        self.ended_s = {}
        self.queries = []

    def now_s(self):
        return 1000 + self.clock.now_ns() / 1e9

    def answer(self, request):
        assert request.url.path == "/x/api/v1/query"
        query = request.url.params["query"]
        self.queries.append(query)
        result = [self.now_s(), str(self.now_s())] if query == "time()" else list(self.series())
        return httpx.Response(200, json={"status": "success", "data": {"result": result}})

    def series(self):
        for instance, labels in self.targets.items():
            until_s = min(self.now_s(), self.ended_s.get(instance, self.now_s()))
            times_s = range(900, int(until_s) + 1, 2)
            values = [[at_s, str(at_s - 900)] for at_s in times_s]
            yield {"metric": {"__name__": "vllm:request_success_total", "job": "vllm", "instance": instance,
                              "model_name": "m", **labels}, "values": values}


def counted(reading):
    return {name: page.total("vllm:request_success_total") for name, page in reading.pages.items()}


def test_prometheus_server_gives_the_last_scrape_of_each_replica():
    scraper = Scraper()
    reading = scraper.reader(PROMETHEUS).read(fresh=False)
    assert counted(reading) == {"10.0.0.5:8000": 100, "vllm-1 (10.0.0.6:8000)": 100}
    assert scraper.queries[-1].endswith(',__name__!~".*_bucket",job="vllm"}[5m]')


def test_fresh_reading_waits_until_every_replica_was_scraped_again():
    scraper = Scraper()
    scraper.clock.sleep_ns(1_500_000_000)
    reading = scraper.reader(PROMETHEUS).read()
    assert set(counted(reading).values()) == {102}
    assert scraper.now_s() < 1004


def test_replica_that_is_not_scraped_any_more_is_silent():
    scraper = Scraper()
    scraper.ended_s = {"10.0.0.5:8000": 1000}
    scraper.clock.sleep_ns(1_500_000_000)
    reading = scraper.reader(PROMETHEUS).read()
    assert list(reading.pages) == ["vllm-1 (10.0.0.6:8000)"]
    assert reading.silent == {"10.0.0.5:8000": "not scraped for 5 s"}


def test_replica_that_ended_long_before_is_no_replica():
    scraper = Scraper()
    scraper.ended_s = {"10.0.0.5:8000": 950}
    reading = scraper.reader(PROMETHEUS).read(fresh=False)
    assert (list(reading.pages), dict(reading.silent)) == (["vllm-1 (10.0.0.6:8000)"], {})


def test_query_without_series_is_refused_with_the_query():
    scraper = Scraper()
    scraper.targets = {}
    with pytest.raises(EngineError, match=r'has no series of .*job="vllm".*Nothing was measured.*correct `match=`'):
        scraper.reader(PROMETHEUS).check()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (httpx.ConnectError("refused"), r"Prometheus server http://p:9090/x does not answer \(ConnectError: refused\)"),
        (httpx.Response(400, json={"status": "error", "error": "parse error"}), r"refuses the query .*parse error"),
        (httpx.Response(200, text="<html>"), "refuses the query"),
        (httpx.Response(200, json={"status": "success", "data": {"result": []}}), "is not a Prometheus server"),
    ],
)
def test_server_that_is_no_prometheus_server_is_refused(answer, message):
    scraper = Scraper()

    def reply(_request):
        if isinstance(answer, Exception):
            raise answer
        return answer

    scraper.answer = reply
    with pytest.raises(EngineError, match=message):
        scraper.reader(PROMETHEUS).check()


def alternating(*starts):
    """A load balancer that hands out the page of one replica after the other."""
    pages = iter(starts)
    return lambda _request: httpx.Response(200, text=f"process_start_time_seconds {next(pages)}\n{page()}")


@pytest.mark.parametrize(("starts", "ending"), [
    ((200, 100, 200, 100),
     pytest.raises(WrongServer, match=r"Several servers answer for .*/metrics: .* 100 and 200.*metrics=")),
    ((100, 100, 100, 100), nullcontext()),
], ids=["several", "one"])
def test_one_address_with_pages_of_several_processes_is_refused_before_load(make_server, starts, ending):
    server = make_server()
    transport = httpx.MockTransport(alternating(*starts))
    server.control.client = httpx.Client(base_url=server.contact.url, transport=transport)
    with ending:
        server.counters.check_replicas()


def test_copied_page_of_router_is_refused_with_remedy(replicas):
    replicas.pages = {"a:1": 'sglang_generation_tokens_total{worker_addr="w"} 5\n'}
    with pytest.raises(EngineError, match=r"names such as sglang_generation_tokens_total: .*metrics=\[\"http://WORKER"):
        replicas.reader("http://a:1").check()


def test_server_sums_counters_and_gauges_of_all_replicas(make_server, replicas):
    extra = 'vllm:num_requests_running 2\nvllm:kv_cache_usage_perc 0.%d\nvllm:cache_config_info{block_size="%d"} 1\n'
    replicas.pages = {"a:1": page(finished=3) + extra % (4, 16), "b:1": page(finished=4) + extra % (7, 32)}
    spec = endpoint("http://h:1", model="m", metrics=["http://a:1", "http://b:1"])
    server = make_server(spec, replicas=replicas.reader(*spec.metrics))
    assert server.counters.read()["requests_finished"] == 7
    assert dict(server.counters.gauges()) == {"running": 4, "kv_usage": 0.7}
    assert server.facts["block_size"] == "16 / 32"
    assert server.counters.replica_count == 2
    replicas.pages["b:1"] += 'vllm:num_requests_running{engine="1"} NaN\n'
    assert dict(server.counters.gauges()) == {"kv_usage": 0.7}
    del replicas.pages["b:1"]
    assert server.counters.read()["requests_finished"] == 3
    assert server.counters.scaling() == "replica b:1 vanished (ConnectError: refused)"


def test_restarted_replica_is_noticed_between_tests(make_server, replicas):
    replicas.pages = {"a:1": "process_start_time_seconds 100\n" + page()}
    spec = endpoint("http://h:1", model="m", metrics="http://a:1")
    server = make_server(spec, replicas=replicas.reader(*spec.metrics))
    server.counters.remember_process()
    assert not server.counters.restarted_since()
    replicas.pages = {"a:1": "process_start_time_seconds 300\n" + page()}
    assert server.counters.restarted_since()
