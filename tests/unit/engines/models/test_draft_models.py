"""A draft model is named like any model."""

import random
import sys
from functools import partial
from pathlib import Path

import pytest

from pytest_llmperf import sglang, vllm
from pytest_llmperf.clock import SystemClock
from pytest_llmperf.config.settings import Settings
from pytest_llmperf.engines.models.draft_models import check_method_module
from pytest_llmperf.engines.process.environment import Environment
from pytest_llmperf.engines.process.installed import has_module
from pytest_llmperf.engines.process.launch import Launcher
from pytest_llmperf.engines.process.resolution import Resolver
from pytest_llmperf.engines.spec import flags_of
from pytest_llmperf.errors import EnvironmentMissing, SpecError


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project that contains a draft model. The user's home folder contains a second draft model of the same name."""
    for folder in ("project/drafts/eagle", "home/eagle", "project/ngram"):
        (tmp_path / folder).mkdir(parents=True)
    for folder in ("project/drafts/eagle", "home/eagle"):
        (tmp_path / folder / "config.json").write_text("{}")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "project"


def with_draft(project, spec):
    """The spec as the engine gets it, of a project that builds its models in `models`."""
    return Resolver(Settings(cache_dir="models"), project, emulated=True).of(spec.on("h200")).spec


@pytest.fixture
def resolved(project):
    """The draft model as vLLM gets it. SGLang gets the same."""

    def resolve(name):
        config = flags_of(with_draft(project, vllm("tiny", speculative_config={"model": name, "method": "eagle"})))
        assert config["speculative_config"]["method"] == "eagle"
        same = flags_of(with_draft(project, sglang("tiny", speculative_draft_model_path=name)))
        assert same == {"speculative_draft_model_path": config["speculative_config"]["model"]}
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


def test_draft_model_of_registry_is_built_and_passed_as_folder(project):
    spec = vllm("llama-3.1-70b", speculative_config={"method": "draft_model", "model": "llama-3.1-8b"})
    config = flags_of(with_draft(project, spec))["speculative_config"]
    assert (Path(config["model"]) / "config.json").is_file()
    assert Path(config["model"]).parent == project / "models"
    assert config["method"] == "draft_model"


@pytest.mark.parametrize("flags", [{}, {"speculative_config": '{"model": "./nowhere"}'}, {"speculative_config": {}}])
def test_flags_without_draft_name_are_unchanged(project, flags):
    assert with_draft(project, vllm("tiny", **flags)) == vllm("tiny", **flags)


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
    def test_draft_model_of_another_vocabulary_is_refused_before_start(self, project, build):
        (project / "drafts/eagle/config.json").write_text('{"vocab_size": 384}')
        launcher = Launcher(Settings(), project, project / "run", "cpu", SystemClock(), random.Random(1))
        with pytest.raises(SpecError, match=r"a vocabulary of 384 tokens, and its target tiny one of 10240"):
            launcher.check(build("./drafts/eagle"))
        with pytest.raises(SpecError, match=r"a vocabulary of 384 tokens"):
            with_draft(project, build("./drafts/eagle"))

    def test_missing_draft_model_is_refused_before_start(self, project, build):
        launcher = Launcher(Settings(), project, project / "run", "cpu", SystemClock(), random.Random(1))
        with pytest.raises(SpecError, match=r"no model '\./drafts/eagel'"):
            launcher.check(build("./drafts/eagel"))


def test_suffix_method_without_package_is_refused_before_start(tmp_path):
    bundle = tmp_path / "bundle"
    (bundle / "vllm" / "entrypoints" / "cli").mkdir(parents=True)
    (bundle / "vllm" / "__init__.py").touch()
    environment = Environment((sys.executable,), True, bundle, "bundle")
    spec = vllm("tiny", speculative_config={"method": "suffix", "num_speculative_tokens": 8})

    with pytest.raises(EnvironmentMissing, match=r"'suffix' needs the package arctic-inference.*pip install arctic"):
        check_method_module(spec, partial(has_module, environment), environment.origin)
    (bundle / "arctic_inference").mkdir()
    (bundle / "arctic_inference" / "__init__.py").write_text("raise ImportError('never imported')")
    has_module.cache_clear()
    check_method_module(spec, partial(has_module, environment), environment.origin)


@pytest.mark.parametrize("config", [{"method": "ngram"}, {"method": ["suffix"]}, "suffix", None])
def test_other_draft_methods_need_no_package(config):
    flags = {} if config is None else {"speculative_config": config}
    check_method_module(vllm("tiny", **flags), lambda _: pytest.fail("asked"), "here")


def test_engine_that_gives_no_answer_is_not_refused():
    asked = []
    check_method_module(vllm("tiny", speculative_config={"method": "suffix"}), asked.append, "here")
    assert asked == ["arctic_inference"]
