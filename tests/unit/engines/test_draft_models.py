"""A draft model is named like any model."""

import random

import pytest

from pytest_llmperf import sglang, vllm
from pytest_llmperf.clock import SystemClock
from pytest_llmperf.config.settings import Settings
from pytest_llmperf.engines.adapter import Placement
from pytest_llmperf.engines.adapters import adapter_of
from pytest_llmperf.engines.draft_models import with_draft_resolved
from pytest_llmperf.engines.environment import Environment
from pytest_llmperf.engines.launch import Launcher
from pytest_llmperf.engines.models import ResolvedModel
from pytest_llmperf.errors import SpecError


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project that contains a draft model. The user's home folder contains a second draft model of the same name."""
    for folder in ("project/drafts/eagle", "home/eagle", "project/ngram"):
        (tmp_path / folder).mkdir(parents=True)
    for folder in ("project/drafts/eagle", "home/eagle"):
        (tmp_path / folder / "config.json").write_text("{}")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "project"


@pytest.fixture
def resolved(project):
    """What vLLM is given for a draft; SGLang is given the same."""

    def resolve(name):
        resolved_spec = with_draft_resolved(
            {"speculative_config": {"model": name, "method": "eagle"}}, project, project
        )
        assert resolved_spec["speculative_config"]["method"] == "eagle"
        same = with_draft_resolved({"speculative_draft_model_path": name}, project, project)
        assert same == {"speculative_draft_model_path": resolved_spec["speculative_config"]["model"]}
        return same["speculative_draft_model_path"]

    return resolve


@pytest.mark.parametrize("name", ["drafts/eagle", "./drafts/eagle"])
def test_a_relative_path_begins_at_the_projects_root(project, resolved, name):
    assert resolved(name) == str(project / "drafts" / "eagle")


def test_draft_model_in_home_folder_is_resolved(project, resolved):
    assert resolved("~/eagle") == str(project.parent / "home" / "eagle")
    assert resolved(str(project / "drafts" / "eagle")) == str(project / "drafts" / "eagle")


@pytest.mark.parametrize("name", ["org/eagle", "gpt2", "ngram", "[ngram]", "x" * 5000])
def test_draft_model_that_is_no_path_is_passed_unchanged(resolved, name):
    assert resolved(name) == name


@pytest.mark.parametrize("flags", [{}, {"speculative_config": '{"model": "./nowhere"}'}, {"speculative_config": {}}])
def test_other_flags_stay(project, flags):
    assert with_draft_resolved(flags, project, project) == flags


@pytest.mark.parametrize(("name", "complaint"), [
    ("./drafts/eagel", "no model './drafts/eagel'"),
    ("~/nothing", "no model '~/nothing'"),
    ("./ngram", "'./ngram' exists but holds no config.json"),
])
def test_a_path_without_a_model_is_refused(resolved, name, complaint):
    with pytest.raises(SpecError, match=complaint):
        resolved(name)


@pytest.mark.parametrize("build", [
    lambda name: vllm("tiny", speculative_config={"model": name}),
    lambda name: sglang("tiny", speculative_draft_model_path=name),
])
class TestOfAnEngine:
    def test_relative_draft_model_is_resolved_from_root(self, project, build):
        model = ResolvedModel("m", "checkpoint", None, None, "m")
        environment = Environment(("python",), True, None, "here")
        placement = Placement("h200", 8123, "nonce", model, environment, project / "models", root=project)
        spec = build("./drafts/eagle")
        assert str(project / "drafts" / "eagle") in " ".join(adapter_of(spec.engine).arguments(spec, placement))

    def test_draft_model_of_another_vocabulary_is_refused_before_start(self, project, build):
        (project / "drafts/eagle/config.json").write_text('{"vocab_size": 384}')
        launcher = Launcher(Settings(), project, project / "run", "cpu", SystemClock(), random.Random(1))
        with pytest.raises(SpecError, match=r"a vocabulary of 384 tokens, and its target tiny one of 10240"):
            launcher.check(build("./drafts/eagle"))

    def test_missing_draft_model_is_refused_before_start(self, project, build):
        launcher = Launcher(Settings(), project, project / "run", "cpu", SystemClock(), random.Random(1))
        with pytest.raises(SpecError, match=r"no model '\./drafts/eagel'"):
            launcher.check(build("./drafts/eagel"))
