"""The control side of a server: whatever it answers, or whether it answers, an error of ours says so."""

from contextlib import nullcontext

import httpx
import pytest

from pytest_llmperf.engines.adapters import adapter_of
from pytest_llmperf.engines.control.identity import check_configuration, check_identity, generate_one_token
from pytest_llmperf.engines.endpoint.spec import endpoint
from pytest_llmperf.engines.models import ResolvedModel
from pytest_llmperf.engines.spec import vllm
from pytest_llmperf.errors import EngineError, ServerDied, SpecError, WrongServer
from pytest_llmperf.model.request import Request

HTML = httpx.Response(200, text="<html>hello</html>")
SILENT = httpx.ReadTimeout("timed out")


NOTHING = httpx.Response(200, json={})


@pytest.mark.parametrize("answer", [HTML, NOTHING, httpx.Response(503), httpx.Response(200, json=5)])
def test_malformed_model_list_is_an_engine_error(make_server, fake_engine, answer):
    fake_engine.answers["/v1/models"] = answer
    with pytest.raises(EngineError, match=r"/v1/models answered"):
        check_identity(make_server())


def test_list_of_models_may_be_a_bare_list(make_server, fake_engine):
    for listed, ending in (("m", nullcontext()), ("x", pytest.raises(WrongServer, match="serves x, not 'm'"))):
        fake_engine.answers["/v1/models"] = httpx.Response(200, json=[{"id": listed}])
        with ending:
            check_identity(make_server())


def test_another_model_is_the_wrong_server(make_server, fake_engine):
    fake_engine.answers["/v1/models"] = httpx.Response(200, json={"data": [{"id": "x"}, {"name": "m"}, "m"]})
    with pytest.raises(WrongServer, match="serves x, not 'm'"):
        check_identity(make_server())


@pytest.mark.parametrize("status", [401, 403])
def test_server_that_requires_api_key_is_refused(make_server, fake_engine, status):
    """The error does not depend on the route: SGLang can require a key for completions and no key for /v1/models."""
    fake_engine.answers["/v1/completions"] = httpx.Response(status)
    with pytest.raises(WrongServer, match=f"refuses us: /v1/completions answered {status}"):
        generate_one_token(make_server(), 1.0)
    fake_engine.answers["/v1/models"] = httpx.Response(status)
    with pytest.raises(WrongServer, match=f"refuses us: /v1/models answered {status}"):
        check_identity(make_server())


@pytest.mark.parametrize(
    "answer", [HTML, httpx.Response(500, text="dead"), httpx.Response(200, json={"usage": None}), httpx.Response(200)]
)
def test_answer_without_token_is_an_engine_error(make_server, fake_engine, answer):
    fake_engine.answers["/v1/completions"] = answer
    with pytest.raises(EngineError, match="is up but generates nothing"):
        generate_one_token(make_server(), 1.0)


def test_first_token_of_an_aborted_answer_is_no_success(make_server, fake_engine):
    choice = {"text": "x", "finish_reason": "abort"}
    fake_engine.answers["/v1/completions"] = httpx.Response(
        200, json={"choices": [choice], "usage": {"completion_tokens": 1}})
    with pytest.raises(EngineError, match='ended with "abort"'):
        generate_one_token(make_server(), 1.0)


def test_error_behind_the_shown_begin_of_an_answer_is_the_reason(make_server, fake_engine):
    text = '{"x": "' + "y" * 300 + '", "error": {"message": "no memory"}}'
    fake_engine.answers["/v1/completions"] = httpx.Response(500, text=text)
    with pytest.raises(EngineError, match=r"answered 500 \(.*no memory\)"):
        generate_one_token(make_server(), 1.0)


def test_facts_contain_version_and_cache_blocks(make_server):
    assert dict(make_server().facts) == {"block_size": "16", "num_gpu_blocks": "100", "version": "1.2"}


def test_facts_of_silent_server_are_empty(make_server, fake_engine):
    fake_engine.answers |= {"/version": HTML, "/server_info": HTML, "/metrics": HTML}
    assert dict(make_server().facts) == {}


@pytest.mark.parametrize("path", ["/version", "/server_info"])
def test_a_server_that_hangs_is_not_a_traceback(make_server, fake_engine, path):
    fake_engine.answers[path] = SILENT
    with pytest.raises(EngineError, match=r"hangs.*ReadTimeout"):
        _ = make_server().facts


def test_configuration_of_vllm_is_awaited_for_a_minute():
    def answer(request):
        return httpx.Response(200 if request.extensions["timeout"]["read"] >= 60 else 504, json={"vllm_config": {
            "scheduler_config": {"max_num_seqs": 8}}})

    with httpx.Client(base_url="http://h", transport=httpx.MockTransport(answer), timeout=10.0) as client:
        assert adapter_of("vllm").resolved(client) == {"max_num_seqs": "8"}


def test_error_of_dead_server_contains_signal(make_server, fake_engine, fake_process):
    fake_engine.answers |= {"/metrics": httpx.ConnectError("refused"), "/version": httpx.ConnectError("refused")}
    server = make_server(vllm("m"), process=fake_process)
    assert server.counters.read() == {}  # unreachable, and as far as anybody knows alive
    fake_process.ended = "signal 9 (SIGKILL)"
    with pytest.raises(ServerDied, match="signal 9"):
        server.counters.read()
    with pytest.raises(ServerDied, match="signal 9"):
        server.reset_cache()


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "x"])
def test_counter_of_one_rank_without_a_number_is_an_error(make_server, fake_engine, value):
    ranks = f'vllm:generation_tokens_total{{engine="0"}} 5\nvllm:generation_tokens_total{{engine="1"}} {value}\n'
    fake_engine.answers["/metrics"] = httpx.Response(200, text=ranks.replace("5", "0"))
    with pytest.raises(EngineError, match=r"counter generation_tokens is .*The run is invalid"):
        make_server().counters.read()


def test_metrics_page_is_asked_for_as_text(make_server):
    asked = []
    server = make_server()
    server.control.client = httpx.Client(base_url=server.contact.url, transport=httpx.MockTransport(
        lambda request: asked.append(request.headers["accept"]) or httpx.Response(404)))
    server.counters.read()
    assert asked[0].startswith("text/plain;version=0.0.4")


def test_a_server_that_was_stopped_for_another_did_not_die(make_server, fake_process):
    server = make_server(vllm("m"), process=fake_process)
    server.stop(0)
    with pytest.raises(SpecError, match="one runs at a time"):
        server.unit.check_alive()


@pytest.mark.parametrize(("keep", "external"), [((), "true"), (("l2",), "true"), (("l1",), "false")])
def test_offloaded_cache_is_emptied_unless_tier_is_kept(make_server, fake_engine, keep, external):
    assert make_server(vllm("m")).reset_cache(keep)
    assert ("/reset_prefix_cache", {"reset_external": external}) in fake_engine.queries


@pytest.mark.parametrize(("keep", "emptied"), [((), False), (("l2",), False), (("l1",), True), (("l1", "l2"), True)])
@pytest.mark.parametrize(
    "spec", [vllm("m").with_lmcache(in_process=True), vllm("m", kv_offloading_size=8, kv_offloading_backend="lmcache")]
)
def test_in_process_lmcache_is_never_reported_as_emptied(make_server, fake_engine, spec, keep, emptied):
    """vLLM asks a connector that cannot, and answers success."""
    assert make_server(spec).reset_cache(keep) is emptied
    assert "/reset_prefix_cache" in fake_engine.paths


def test_cache_of_endpoint_is_not_reset(make_server, fake_engine):
    assert make_server().reset_cache() is False
    assert "/reset_prefix_cache" not in fake_engine.paths


def test_idle_wait_ends_when_all_requests_are_counted(make_server, fake_engine):
    server = make_server()
    pages = iter([4, 4, 6])

    def page(request):
        fake_engine.finished = next(pages)
        return fake_engine.answer(request)

    server.control.client = httpx.Client(base_url=server.contact.url, transport=httpx.MockTransport(page))
    assert server.counters.wait_idle(1.0, 5)["requests_finished"] == 6


def test_idle_wait_returns_the_counters_after_its_timeout(make_server):
    assert make_server().counters.wait_idle(0.0, 5, timeout_s=0.0)["requests_finished"] == 0


@pytest.mark.parametrize(
    ("url", "address", "path"),
    [
        ("http://10.0.0.5", ("10.0.0.5", 80), "/v1/completions"),
        ("http://[::1]:8000", ("::1", 8000), "/v1/completions"),
        ("http://h:81/team/proxy", ("h", 81), "/team/proxy/v1/completions"),
    ],
)
def test_endpoint_url_gives_address_and_path(make_server, url, address, path):
    server = make_server(endpoint(url, model="m"), url=url)
    assert server.contact.address == address
    assert server.post(Request(0, (1, 2), 3, 2))[0] == path


def test_another_loaded_model_or_flag_is_the_wrong_server(make_server, fake_engine):
    loaded = ResolvedModel("/models/other", "dummy", None, "other")
    with pytest.raises(WrongServer, match="loaded m, not /models/other"):
        check_configuration(make_server(vllm("other"), model=loaded))
    config = {"vllm_config": {"scheduler_config": {"max_num_seqs": 4}}}
    fake_engine.answers["/server_info"] = httpx.Response(200, json=config)
    with pytest.raises(WrongServer, match="max_num_seqs=8, and the server resolved it to 4"):
        check_configuration(make_server(vllm("m", max_num_seqs=8)))


@pytest.mark.parametrize(("flag", "mode", "eager"), [
    (False, 0, "True"), (False, "NONE", "True"), (True, 0, "True"), (False, [2, 1], "False"), (False, 1, "False"),
    (False, None, "False"),
])
def test_a_server_without_cuda_graphs_is_eager_whichever_flag_says_so(make_server, fake_engine, flag, mode, eager):
    config = {"vllm_config": {"model_config": {"enforce_eager": flag}, "compilation_config": {"cudagraph_mode": mode}}}
    fake_engine.answers["/server_info"] = httpx.Response(200, json=config)
    assert make_server(vllm("m")).facts["enforce_eager"] == eager


def test_a_number_that_is_left_to_the_engine_is_no_other_number(make_server, fake_engine):
    config = {"vllm_config": {"model_config": {"max_model_len": 40960}}}
    fake_engine.answers["/server_info"] = httpx.Response(200, json=config)
    check_configuration(make_server(vllm("m", max_model_len=-1)))
    with pytest.raises(WrongServer, match="max_model_len=4096, and the server resolved it to 40960"):
        check_configuration(make_server(vllm("m", max_model_len=4096)))


def test_repr_of_server_hides_secrets(make_server):
    assert "topsecret1" not in repr(make_server(vllm("m", env={"HF_TOKEN": "topsecret1"})))
