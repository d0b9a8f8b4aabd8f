"""Additions of other packages: found by name, loaded on first use, refused with the package's name."""

from importlib.metadata import EntryPoint

import pytest

from pytest_llmperf import doors
from pytest_llmperf.doors import Door
from pytest_llmperf.errors import ConfigError


class Thing:
    def __init__(self, name="mine", api=1):
        self.name, self.api = name, api


GOOD = Thing()
OLD = Thing("old", api=7)
OTHER_NAME = Thing("another")
WRONG_TYPE = 3


class Package:
    def __init__(self, name):
        self.name, self.version = name, "2.0"


def point(name, value, package):
    found = EntryPoint(name, f"{__name__}:{value}" if ":" not in value else value, "llmperf")
    vars(found)["dist"] = Package(package)
    return found


@pytest.fixture
def door(monkeypatch):
    def door(*points, shipped=None):
        monkeypatch.setattr(doors, "_entry_points", lambda: points)
        return Door("thing", "a Thing", lambda value: isinstance(value, Thing), shipped or {})

    return door


def test_names_are_known_without_an_import(door):
    opened = door(point("thing.mine", "no.such.module:X", "p"), point("engine.other", "no.such:X", "p"))
    assert tuple(opened) == ("mine",)


def test_object_behind_a_name_is_loaded_on_first_use(door):
    opened = door(point("thing.mine", "GOOD", "p"))
    assert opened.get("mine") is GOOD
    assert opened.get("nobody's") is None


@pytest.mark.parametrize(("name", "value", "problem"), [
    ("thing.mine", "no.such.module:X", r"p 2\.0 adds the thing 'mine', which cannot be imported: ModuleNotFoundError"),
    ("thing.old", "OLD", r"p 2\.0 adds the thing 'old' for version 7 of the doors, .* has version 1"),
    ("thing.mine", "WRONG_TYPE", r"p 2\.0 adds the thing 'mine', which is int and must be a Thing"),
    ("thing.mine", "OTHER_NAME", r"p 2\.0 adds the thing 'mine', whose own name is 'another'"),
])
def test_unusable_object_is_refused_with_package_name(door, name, value, problem):
    with pytest.raises(ConfigError, match=problem):
        door(point(name, value, "p")).get(name.partition(".")[2])


def test_name_of_two_packages_is_refused_with_both(door):
    with pytest.raises(ConfigError, match=r"q 2\.0 adds the thing 'mine', which p 2\.0 has, too"):
        tuple(door(point("thing.mine", "GOOD", "p"), point("thing.mine", "GOOD", "q")))
    with pytest.raises(ConfigError, match="which pytest-llmperf has, too"):
        tuple(door(point("thing.mine", "GOOD", "p"), shipped={"mine": GOOD}))
    with pytest.raises(ConfigError, match="which pytest-llmperf has, too"):
        door(point("thing.mine", "GOOD", "p"), shipped={"mine": GOOD}).get("mine")


def test_registered_objects_are_known_until_the_block_ends(door):
    opened = door(shipped={"ours": Thing("ours")})
    with opened.added([GOOD], "conftest.py"):
        assert opened.get("mine") is GOOD
        assert tuple(opened) == ("ours", "mine")
        with pytest.raises(ConfigError, match=r"conftest\.py adds the thing 'ours', which pytest-llmperf has, too"), \
                opened.added([Thing("ours")], "conftest.py"):
            pass
    assert opened.get("mine") is None


def test_unknown_name_gets_the_nearest_known_name(door):
    assert "Did you mean 'mine'?" in door(point("thing.mine", "GOOD", "p")).unknown("mien")
