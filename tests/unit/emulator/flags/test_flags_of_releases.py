"""The emulator accepts what the engine's own parser accepts, by the releases that were read from the wheels."""

import pytest

from pytest_llmperf.emulator.flags.parser import EngineParser
from pytest_llmperf.emulator.flags.tables import FLAGS, SGLANG, VLLM
from pytest_llmperf.emulator.quantities import UsageError
from pytest_llmperf.releases.stored import release, versions

RELEASES = [(engine, version) for engine in FLAGS for version in versions(engine)]
#: Converter → a value that it takes, and one that it refuses.
PROBES = {"int": ("7", "7.5"), "float": ("0.5", "half"), "json": ('{"a": 1}', "{"), "human_readable_int": ("7", "7q"),
          "parse_cuda_graph_config_arg": ('{"a": 1}', "{")}


def emulated(engine, version):
    """Flag → its stored entry and the action of the emulator's parser."""
    parser, facts = EngineParser(FLAGS[engine], version), release(engine, version)
    named = (f"--{name}" for name in (*FLAGS[engine].effective, *FLAGS[engine].harmless))
    return parser, {name: (facts.flags[name], parser._option_string_actions[name])
                    for name in named if name in facts.flags}


@pytest.mark.parametrize(("engine", "version"), RELEASES)
def test_every_accepted_option_is_an_option_of_the_release(engine, version):
    accepted = EngineParser(FLAGS[engine], version)._option_string_actions
    assert len(accepted) > 60
    assert accepted.keys() - release(engine, version).options().keys() == set()


@pytest.mark.parametrize(("engine", "version"), RELEASES)
def test_defaults_are_those_of_the_release_unless_the_engine_resolves_them(engine, version):
    for name, (entry, action) in emulated(engine, version)[1].items():
        if action.dest not in FLAGS[engine].resolved:
            assert action.default == entry.get("default"), name


@pytest.mark.parametrize(("engine", "version"), RELEASES)
def test_values_are_taken_and_refused_as_by_the_release(engine, version):
    parser, flags = emulated(engine, version)
    for name, (entry, action) in flags.items():
        choices = [choice for choice in entry.get("choices", ()) if choice is not None]
        good, bad = PROBES.get(entry.get("type"), (choices[0] if choices else "text", None))
        if action.nargs == 0:
            good, bad = None, "text"
        elif choices:
            good, bad = choices[0], "no such choice"
        many = entry.get("nargs") == 2
        words = [name, *([] if good is None else [str(good)] * (2 if many else 1))]
        assert parser.parse_args(words) is not None, name
        if bad is not None and not many:
            with pytest.raises(UsageError):
                parser.parse_args([f"{name}={bad}"])


@pytest.mark.parametrize(("engine", "version"), RELEASES)
def test_every_further_name_of_a_flag_sets_the_same_option(engine, version):
    parser, flags = emulated(engine, version)
    for entry, action in flags.values():
        for name in entry.get("names", ()):
            assert parser._option_string_actions[name] is action
        for name in entry.get("off", ()):
            assert parser._option_string_actions[name].dest == action.dest


@pytest.mark.parametrize("engine", FLAGS)
def test_tables_name_only_flags_that_some_release_has(engine):
    known = {name for version in versions(engine) for name in release(engine, version).flags}
    tables = FLAGS[engine]
    named = {*tables.effective, *tables.harmless}
    assert {name for name in named if name not in known and f"--{name}" not in known} == set()
    assert set(tables.from_zero) <= set(tables.effective)
    assert len(named) == len(tables.effective) + len(tables.harmless)


@pytest.mark.parametrize(("flags", "version", "words"), [
    (SGLANG, "0.5.23", "ambiguous option: --cuda-graph-max-bs could match --cuda-graph-max-bs-decode, "
                       "--cuda-graph-max-bs-prefill. Write one."),
    (VLLM, "0.33.0", "--calculate-kv-scales cannot be emulated"),
    (VLLM, "0.33.0", "--max-num-partial-prefills cannot be emulated"),
])
def test_flag_that_the_release_lost_is_refused(flags, version, words):
    flag = next(word for word in words.split() if word.startswith("--"))
    with pytest.raises(UsageError) as refused:
        EngineParser(flags, version).read([flag, "8"])
    assert words in str(refused.value)


def test_beginning_of_one_option_alone_is_completed():
    options = EngineParser(SGLANG).read(["--model-path", "m", "--tp", "2", "--max-running=7"])
    assert (options.tp_size, options.max_running_requests) == (2, 7)


@pytest.mark.parametrize(("flags", "text", "value"), [
    (VLLM, "8k", 8000), (VLLM, "8K", 8192), (VLLM, "25.6k", 25600), (VLLM, "0.5K", None), (VLLM, "1Ki", None),
    (SGLANG, "8k", 8000), (SGLANG, "8Ki", 8192), (SGLANG, "8K", None), (SGLANG, "0.5Ki", None),
])
def test_suffixes_of_numbers_are_those_of_the_engine(flags, text, value):
    name = {"vllm": "--max-num-batched-tokens", "sglang": "--max-total-tokens"}[flags.engine]
    words = [name, text, *(["--model-path", "m"] if flags is SGLANG else [])]
    if value is None:
        with pytest.raises(UsageError, match="no whole number"):
            EngineParser(flags).read(words)
    else:
        assert getattr(EngineParser(flags).read(words), name[2:].replace("-", "_")) == value


@pytest.mark.parametrize("flag", ["--no-disable-radix-cache", "--no-enable-metrics"])
def test_sglang_switches_have_no_opposite(flag):
    with pytest.raises(UsageError, match=f"{flag} cannot be emulated"):
        EngineParser(SGLANG).read([flag])


def test_release_that_nobody_stored_is_refused_with_the_stored_ones():
    with pytest.raises(UsageError, match=r"vllm 0\.1\.0 cannot be emulated; 0\.26\.0, .* can\."):
        EngineParser(VLLM, "0.1.0")
