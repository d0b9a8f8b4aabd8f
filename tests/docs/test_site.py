"""The pages become a site: every link leads somewhere, and every page stands in the menu."""

from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

ROOT = Path(__file__).parents[2]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_site_is_built_in_strict_mode(tmp_path):
    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path))
    assert config.strict
    build(config)
    assert (tmp_path / "tutorial" / "index.html").exists()
    assert "<code" in (tmp_path / "tutorial" / "index.html").read_text()
    assert "```" not in (tmp_path / "tutorial" / "index.html").read_text(), "a fence that was not understood"
