"""Engine specs: specs with the same meaning are equal, specs are hashable, invalid specs are refused early."""

import json
from pathlib import Path

import pytest

from pytest_llmperf.engines.endpoint.spec import endpoint
from pytest_llmperf.engines.spec import command_line, flags_of, sglang, vllm
from pytest_llmperf.errors import SpecError


def test_order_of_arguments_does_not_change_spec():
    first = vllm("m", a=1, b={"x": 1, "y": 2}, env={"P": "1", "Q": "2"})
    two = vllm("m", b={"y": 2, "x": 1}, a=1, env={"Q": "2", "P": "1"})
    assert first == two
    assert hash(first) == hash(two)


@pytest.mark.parametrize("other", [vllm("m", a=2), vllm("n", a=1), vllm("m", a=True), vllm("m", a=1, env={"P": "1"})])
def test_specs_with_different_content_are_unequal(other):
    assert vllm("m", a=1) != other


def test_flag_without_value_is_omitted():
    assert vllm("m", a=None) == vllm("m")


def test_environment_values_become_text_and_missing_values_are_omitted():
    """Otherwise a missing variable from os.environ.get would become the text "None"."""
    assert vllm("m", env={"HF_TOKEN": None}) == vllm("m")
    assert vllm("m", env={"P": 1, "Q": 0.5, "R": Path("/x")}) == vllm("m", env={"P": "1", "Q": "0.5", "R": "/x"})


@pytest.mark.parametrize("value", [True, {"a": "hunter22"}, ["hunter22"], b"hunter22"])
def test_invalid_environment_value_is_refused_without_showing_value(value):
    with pytest.raises(SpecError, match=r"env=\{'P': …\}\): a variable must be text, a number or a path") as caught:
        vllm("m", env={"P": value})
    assert "hunter22" not in str(caught.value)


def test_flags_of_spec_equal_given_flags():
    flags = {"a": 0.9, "b": False, "c": [1, "x"], "d": {"k": None}}
    assert flags_of(vllm("m", **flags)) == flags
    assert flags_of(vllm("m", c=(1, "x")))["c"] == [1, "x"]


def test_with_flags_replaces_and_removes_flags():
    first = vllm("m", a=1, b=2, env={"P": "1"})
    assert first.with_flags(a=3, c=4) == vllm("m", a=3, b=2, c=4, env={"P": "1"})
    assert first.with_flags(b=None) == vllm("m", a=1, env={"P": "1"})


def test_flags_are_rendered_as_command_line():
    flags = {"on": True, "with_off": False, "n_x": 3, "share": 0.9, "name": "a b", "conf": {"b": 1, "a": "x"}}
    conf = json.dumps({"a": "x", "b": 1})
    assert command_line(flags) == [
        "--on", "--no-with-off", "--n-x", "3", "--share", "0.9", "--name", "a b", "--conf", conf,
    ]  # fmt: skip
    assert command_line({"sizes": [1, 2]}) == ["--sizes", "1", "2"]
    assert command_line({"n": -1, "key": "-k", "keys": ["-k"]}) == ["--n=-1", "--key=-k", "--keys=-k"]


@pytest.mark.parametrize(
    ("build", "complaint"),
    [
        (lambda: vllm(""), "the model is a shape name, a path or a hub id"),
        (lambda: vllm(None), "the model is a shape name, a path or a hub id"),
        (lambda: vllm("m", a=object()), r"vllm\(…, a=<object"),
        (lambda: vllm("m", a=float("nan")), "a flag must be text, a number"),
        (lambda: vllm("m", port=8000), "port is set by the launcher"),
        (lambda: vllm("m").with_flags(served_model_name="x"), "served_model_name is set by the launcher"),
        (lambda: vllm("m").with_flags(model="n"), "model is not a flag"),
        (lambda: vllm("m").with_flags(env={}), "env is not a flag"),
        (lambda: vllm("m", a="x\0"), "no command line can hold a NUL"),
        (lambda: vllm("m", a=["x", "\0"]), "no command line can hold a NUL"),
        (lambda: vllm("m", env=["A"]), "write variables as a dict, .* of type list"),
        (lambda: vllm("m", env=5), r"vllm\('m', env=…\): write variables as a dict, .* of type int"),
        (lambda: sglang("m", env=""), r"sglang\('m', env=…\): write variables as a dict, .* of type str"),
        (lambda: vllm("m", env=[]), "write variables as a dict, .* of type list"),
        (lambda: vllm("m", env={"A=B": "x"}), r"env=\{'A=B': …\}\): a variable's name must be text without"),
        (lambda: vllm("m", env={"": "x"}), "a variable's name must be text"),
        (lambda: vllm("m", env={1: "x"}), "a variable's name must be text"),
        (lambda: vllm("m", env={"A": "\0"}), "no variable can hold a NUL"),
        (lambda: endpoint(None, model="m"), r"endpoint\(None\): a URL is text"),
        (lambda: endpoint("http://h:1", model="m").with_flags(a=1), "this server runs already"),
    ],
)
def test_invalid_spec_argument_is_refused(build, complaint):
    with pytest.raises(SpecError, match=complaint):
        build()


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("h:8000", "no http or https URL with a host"),
        ("http://:8000", "no http or https URL with a host"),
        ("http://h:0", "no http or https URL with a host"),
        ("http://h:99999", "[Pp]ort out of range"),
        ("http://h:x", "[Pp]ort could not be cast"),
        ("http://[::1:8000", "IPv6"),
        ("http://h:8000/#a", "a fragment has no meaning"),
        ("http://h:8000/v1/chat/completions", 'of protocol="chat", and protocol is "completions"'),
        ("http://h:8000/v1?key=hunter22", r"holds a secret \(key\)"),
    ],
)
def test_invalid_endpoint_url_is_refused(url, complaint):
    with pytest.raises(SpecError, match=complaint):
        endpoint(url, model="m")


@pytest.mark.parametrize("url", ["http://user:hunter22@h:8000", "ftp://user:hunter22@h", "user:hunter22@h"])
def test_credentials_in_a_url_are_refused_and_not_repeated(url):
    with pytest.raises(SpecError, match="holds credentials") as caught:
        endpoint(url, model="m")
    assert "hunter22" not in str(caught.value)


def test_an_endpoint_needs_a_model():
    with pytest.raises(SpecError, match="the id that /v1/models lists"):
        endpoint("http://h:1", model="")


def test_url_keeps_its_path_and_loses_its_last_slash():
    assert endpoint("http://h:1/proxy/", model="org/m").url == "http://h:1/proxy"
    assert endpoint("http://[::1]:8000", model="m").url == "http://[::1]:8000"


def test_secrets_are_masked_in_text_of_spec():
    env = {"DB_PASS": "p", "HF_TOKEN": "topsecret1", "VLLM_X": "shown", "VLLM_Y": "a topsecret1 b"}
    spec = vllm("m", api_key=["k1", "k2"], x={"y": {"password": "p"}}, max_tokens=4, hf_token="t", env=env)
    assert str(spec) == repr(spec) == (
        """vllm('m', api_key=["***", "***"], hf_token="***", max_tokens=4, x={"y": {"password": "***"}}, """
        "env.DB_PASS=***, env.HF_TOKEN=***, env.VLLM_X=shown, env.VLLM_Y=a *** b)"
    )


def test_each_of_several_dicts_is_json():
    spec = vllm("m", lora_modules=[{"name": "a", "path": "/a"}, "b=/b"])
    assert command_line(flags_of(spec)) == ["--lora-modules", '{"name": "a", "path": "/a"}', "b=/b"]


def test_installation_name_makes_spec_unequal():
    new = vllm("m", a=1)
    old = new.with_installation("old")
    assert (new.installed_as, old.installed_as) == ("vllm", "vllm:old")
    assert old != new
    assert str(old) == "vllm('m', a=1).with_installation('old')"
    assert old.with_flags(a=2).installation == "old"
    assert old.with_installation("") == new
    for wrong in ("a b", "x:y", "x@cpu", 3, None):
        with pytest.raises(SpecError, match="a name may contain only letters"):
            new.with_installation(wrong)
    with pytest.raises(SpecError, match="this server runs already"):
        endpoint("http://h:1", model="m").with_installation("old")
