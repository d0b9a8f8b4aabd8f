"""Traces that cannot be made, which is known before a server starts."""

from types import SimpleNamespace

import pytest

from pytest_llmperf.config.settings import Settings
from pytest_llmperf.engines.endpoint.spec import endpoint
from pytest_llmperf.engines.transformers.adapter import transformers
from pytest_llmperf.errors import EngineError
from pytest_llmperf.session.profile import profile_series


@pytest.mark.parametrize(("engine", "reason"), [
    (transformers("tiny"), "no profiler of transformers is known"),
    (endpoint("http://h:8000", model="m"), "this session did not start the server"),
])
def test_engine_without_known_profiler_is_not_traced(tmp_path, engine, reason):
    session = SimpleNamespace(run_dir=tmp_path, settings=Settings())
    series = SimpleNamespace(session=session, engine=engine, execution=SimpleNamespace(test="t"),
                             finished=SimpleNamespace(runs=(None,)))
    with pytest.raises(EngineError, match=f"cannot be traced: {reason}"):
        profile_series(series, 1)
    assert not list(tmp_path.iterdir())
