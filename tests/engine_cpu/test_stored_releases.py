"""The stored options of a release are those of the installed engine, whose parser is built with all its packages."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from pytest_llmperf.engines.adapters import adapter_of
from pytest_llmperf.engines.releases import parser_reader
from pytest_llmperf.releases.stored import release

pytestmark = pytest.mark.real_engine
ROOT = Path(__file__).parents[2]
# Runs the engine's own program up to the point where it parses its command line, and prints its options.
ASK = """
import argparse, importlib.util, json, os, runpy, sys
reader_path, module, *sys.argv[1:] = sys.argv[1:]
place = importlib.util.spec_from_file_location("parser_reader", reader_path)
reader = importlib.util.module_from_spec(place)
place.loader.exec_module(reader)
parse = argparse.ArgumentParser.parse_known_args

def tell(parser, args=None, namespace=None):
    below = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    chosen = [each[name] for each in below for name in sys.argv[1:] if name in each]
    for each in (*chosen, parser):
        if "--served-model-name" in each._option_string_actions:
            options = {reader.main_name(action): reader.entry(action) for action in each._actions}
            print("\\n" + json.dumps(options), flush=True)
            os._exit(0)
    return parse(parser, args, namespace)

argparse.ArgumentParser.parse_known_args = tell
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""
#: What an installed CPU build of vLLM decides by its platform, or by PyTorch's types.
BY_PLATFORM = {"vllm": {"--help", "--model", "--lora-dtype", "--compilation-config", "--mm-processor-device"},
               "sglang": {"--help"}}


@pytest.mark.parametrize(("which", "version"), [("vllm", "0.32.0"), ("sglang", "0.5.23")])
def test_stored_options_equal_those_of_the_installed_engine(which, version):
    python = Path(os.environ.get(f"LLMPERF_{which.upper()}_CPU", ROOT / ".engines" / f"{which}-cpu")) / "bin" / "python"
    command = [python, "-c", ASK, parser_reader.__file__, *adapter_of(which).program, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    installed, stored = json.loads(done.stdout.strip().splitlines()[-1]), release(which, version).flags
    assert len(installed) > 250
    names = (installed.keys() | stored.keys()) - BY_PLATFORM[which]
    assert {name: (stored.get(name), installed.get(name)) for name in names
            if stored.get(name) != installed.get(name)} == {}
