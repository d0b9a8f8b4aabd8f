"""Settings: where they come from, and that every wrong key is named at once."""

import pytest

from pytest_llmperf.config.settings import (
    Settings,
    read_settings,
    settings_from,
    with_engine_options,
    with_options,
)
from pytest_llmperf.errors import ConfigError


def test_missing_settings_give_defaults(tmp_path):
    assert read_settings(tmp_path) == Settings()
    (tmp_path / "pyproject.toml").write_text("[tool.other]\nx = 1\n")
    assert read_settings(tmp_path) == Settings()


def test_settings_are_read_from_pyproject_table(tmp_path):
    (tmp_path / "pyproject.toml").write_text(
        '[tool.llmperf]\nready_timeout_s = 5\n[tool.llmperf.engines]\n"vllm@h200" = "/opt/vllm"\n'
    )
    settings = read_settings(tmp_path)
    assert settings.ready_timeout_s == 5
    assert dict(settings.engines) == {"vllm@h200": "/opt/vllm"}


def test_llmperf_toml_overrides_pyproject(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[tool.llmperf]\nready_timeout_s = 5\n")
    (tmp_path / "llmperf.toml").write_text("ready_timeout_s = 6\n")
    assert read_settings(tmp_path).ready_timeout_s == 6


@pytest.mark.parametrize("text", ["ready_timeout_s = ", "\x00"])
def test_a_broken_file_is_named(tmp_path, text):
    (tmp_path / "llmperf.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"llmperf\.toml: not readable as TOML"):
        read_settings(tmp_path)


@pytest.mark.parametrize("text", ["tool = 3", "[tool]\nllmperf = 3"])
def test_a_value_where_the_table_should_be_is_not_ignored(tmp_path, text):
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"must be a table, \[tool\.llmperf\]"):
        read_settings(tmp_path)


def test_every_wrong_key_is_named_at_once():
    with pytest.raises(ConfigError) as caught:
        settings_from({"ready_timout_s": 1, "stop_grace_s": -1, "runs_dir": "", "engines": {"vllm": 3}}, "here")
    text = str(caught.value)
    assert text.startswith("here: ")
    assert "ready_timout_s: unknown. Did you mean ready_timeout_s?" in text
    assert "stop_grace_s = -1: must be a number ≥ 0" in text
    assert "runs_dir = '': must be a text" in text
    assert "engines = {'vllm': 3}: must be a table" in text


def test_a_share_is_no_percentage():
    with pytest.raises(ConfigError, match=r"coalesced_limit = 5: must be a share, 0 … 1"):
        settings_from({"coalesced_limit": 5}, "here")
    assert settings_from({"coalesced_limit": 1}, "here").coalesced_limit == 1


@pytest.mark.parametrize("value", [True, "5", float("nan"), float("inf"), None])
def test_non_numeric_setting_is_refused(value):
    with pytest.raises(ConfigError, match="must be a number"):
        settings_from({"stop_grace_s": value}, "here")


@pytest.mark.parametrize("key", ["ready_timeout_s", "measure_timeout_s", "gpu_interval_s", "idle_timeout_s"])
def test_no_time_at_all_is_refused(key):
    with pytest.raises(ConfigError, match="must be more than 0"):
        settings_from({key: 0}, "here")


def test_zero_grace_period_and_zero_limit_are_accepted():
    settings = settings_from({"stop_grace_s": 0, "coalesced_limit": 0.0}, "here")
    assert (settings.stop_grace_s, settings.coalesced_limit) == (0, 0.0)


@pytest.mark.parametrize(("option", "key", "value"), [
    ("load_cpus=6", "load_cpus", "6"),
    ("load_hosts=ray://head:10001", "load_hosts", "ray://head:10001"),
    ("extension_limit_s=0", "extension_limit_s", 0),
    ("tls_verify=false", "tls_verify", False),
    ('same_build=["driver"]', "same_build", ("driver",)),
])
def test_option_for_one_command_overrides_a_setting(option, key, value):
    changed = with_options(settings_from({"stop_grace_s": 1}, "here"), [option])
    assert (getattr(changed, key), changed.stop_grace_s) == (value, 1)


@pytest.mark.parametrize(("option", "message"), [
    ("load_cpus", "write it as SETTING=VALUE"), ("engines=vllm", "write it as SETTING=VALUE"),
    ("load_cpu=6", "load_cpu: unknown. Did you mean load_cpus"), ("stop_grace_s=soon", "must be a number"),
])
def test_option_for_one_command_refuses_a_wrong_setting(option, message):
    with pytest.raises(ConfigError, match=f"--llmperf-set.*{message}"):
        with_options(Settings(), [option])


def test_engine_options_override_settings():
    settings = settings_from({"engines": {"vllm": "a", "vllm@cpu": "b"}}, "here")
    changed = with_engine_options(settings, ["vllm=c", "sglang=d=e"])
    assert dict(changed.engines) == {"vllm": "c", "sglang": "d=e"}  # on every kind
    changed = with_engine_options(settings, ["vllm@h200=d", "vllm=c"])
    assert dict(changed.engines) == {"vllm@h200": "d", "vllm": "c"}
    changed = with_engine_options(settings, ["vllm@cpu=d"])
    assert dict(changed.engines) == {"vllm": "a", "vllm@cpu": "d"}
    assert settings.engines["vllm"] == "a"


@pytest.mark.parametrize("option", ["vllm", "=x", "vllm="])
def test_malformed_engine_option_is_refused_with_correct_form(option):
    with pytest.raises(ConfigError, match="NAME=PLACE"):
        with_engine_options(Settings(), [option])


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("load_processes", 0, "must be a whole number ≥ 1"),
        ("load_processes", 1.5, "must be a whole number ≥ 1"),
        ("load_processes", True, "must be a whole number ≥ 1"),
        ("tls_verify", 1, "must be true or false"),
        ("connections", "new", "must be keep-alive or fresh"),
        ("load_cpus", "abc", "must be .auto., .shared., or numbers of CPUs"),
        ("load_hosts", "10.0.0.1:10001", "must be the address of a Ray client server"),
        ("load_hosts", "ray://10.0.0.1", "must be the address of a Ray client server"),
        ("load_cpus", "6,,7", "must be .auto., .shared., or numbers of CPUs"),
        ("proxy", "10.0.0.1:3128", "must be http://HOST:PORT"),
        ("proxy", "https://10.0.0.1:3128", "must be http://HOST:PORT"),
        ("proxy", "http://10.0.0.1", "must be http://HOST:PORT"),
        ("proxy", "http://10.0.0.1:x", "must be http://HOST:PORT"),
    ],
)
def test_how_requests_are_sent_is_checked(key, value, complaint):
    with pytest.raises(ConfigError, match=complaint):
        settings_from({key: value}, "here")


@pytest.mark.parametrize("key", ["proxy", "tls_ca_file"])
def test_empty_text_is_accepted_if_default_is_empty(key):
    assert settings_from({key: ""}, "here") == Settings()


def test_a_password_in_a_proxy_is_refused_and_not_repeated():
    with pytest.raises(ConfigError, match="without credentials") as caught:
        settings_from({"proxy": "http://user:hunter22@h:1"}, "here")
    assert "hunter22" not in str(caught.value)


def test_how_requests_are_sent_can_be_set():
    values = {"load_processes": 2, "tls_verify": False, "connections": "fresh", "proxy": "http://10.0.0.1:3128"}
    settings = settings_from(values, "here")
    assert {key: getattr(settings, key) for key in values} == values


@pytest.mark.parametrize("key", ["cache_dir", "runs_dir", "baselines_dir", "tls_ca_file"])
def test_a_place_may_be_in_one_s_home(monkeypatch, key):
    monkeypatch.setenv("HOME", "/home/me")
    places = {"~/x": "/home/me/x", "x/~": "x/~", "~no-such-user/x": "~no-such-user/x"}
    assert {place: getattr(settings_from({key: place}, "here"), key) for place in places} == places


@pytest.mark.parametrize("place", ["", "  "])
def test_empty_engine_path_is_refused(place):
    """As a path it would be the project itself."""
    with pytest.raises(ConfigError, match="must be a table of NAME"):
        settings_from({"engines": {"vllm": place}}, "here")
