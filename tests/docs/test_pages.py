"""Whoever copies a block of a page gets what the page says. CONTRIBUTING.md tells what a block's words mean."""

import configparser
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
RUN = ("console", "sh")
READ = {"toml": tomllib.loads, "yaml": yaml.safe_load, "json": json.loads, "text": str, "markdown": str,
        "ini": lambda text: configparser.ConfigParser().read_string(text)}
FRAGMENT = """
import pytest
from pytest_llmperf import *

def test_fragment(perf):
    spec = vllm("llama-3.1-8b", max_model_len=8192)
    run = perf.measure(spec, random_tokens(input=64, output=8, arrivals=closed(2), requests=20))
"""
SHIM = '#!/bin/sh\nexec "{python}" {module} "$@"\n'
SHIMS = {"python": "", "llmperf": "-m pytest_llmperf",
         "pytest": "-m pytest --import-mode=importlib -p no:cacheprovider"}
EXIT_CODE = re.compile(r"\(exit code (\d+)\)")
ENVIRONMENT = ".venv-demo"  # of README.md and the tutorial
ON_THE_EMULATOR = "pytest -q --emulate h200 --update-baselines-new"


@pytest.fixture
def project(tmp_path):
    """A project as a user has it: suites, baselines, an environment with this package."""
    for folder in ("suites", "baselines"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    environment = tmp_path / ENVIRONMENT / "bin"
    environment.mkdir(parents=True)
    for name, module in SHIMS.items():
        (environment / name).write_text(SHIM.format(python=sys.executable, module=module))
        (environment / name).chmod(0o755)
    (environment / "activate").write_text(f'PATH="{environment}:$PATH"\n')
    return tmp_path


def run(project, line):
    """A command line, as bash runs it; (exit code, what it printed)."""
    clean = {name: value for name, value in os.environ.items() if name not in ("CI", "PYTEST_ADDOPTS")}
    path = f"{project / ENVIRONMENT / 'bin'}:{os.environ['PATH']}"
    done = subprocess.run(["bash", "-c", line], cwd=project, env=clean | {"PATH": path, "COLUMNS": "200"},
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600, check=False)
    return done.returncode, done.stdout


@pytest.mark.emulated
def test_page_blocks_have_documented_output_and_exit_code(page, project):
    for number, block in enumerate(page.blocks):
        if block.language == "python" and not block.word("part"):
            write_python(project, block, number)
        elif block.language in RUN and not needs_more(block):
            for line, output, code in commands(block):
                check(project, f"{page.path.name}:{block.line}", line, output, code)
    for folder, command in (("blocks", ON_THE_EMULATOR), ("engine_blocks", "pytest -q --collect-only")):
        if (project / folder).exists():
            exit_code, printed = run(project, f"{command} {folder}")
            assert exit_code == 0, printed


def write_python(project, block, number):
    """As a test file: where the page says, or in the folder of those that are run, or collected, together."""
    folder = "engine_blocks" if needs_more(block) else "blocks"
    path = project / (block.word("file") or f"{folder}/test_block_{number}.py")
    path.parent.mkdir(exist_ok=True)
    path.write_text(FRAGMENT + textwrap.indent(block.text, "    ") if block.word("fragment") else block.text)


def needs_more(block):
    """Hardware or a real engine, which this machine need not have."""
    return block.word("gpu") or block.word("engine")


def commands(block):
    """(command line, lines that it prints, exit code) of each command of a block."""
    if block.language == "sh":
        return [(line, [], 0) for line in block.text.splitlines() if line and not line.startswith("#")]
    collected = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            collected.append((line.removeprefix("$ "), [], 0))
        elif code := EXIT_CODE.fullmatch(line):
            collected[-1] = (*collected[-1][:2], int(code[1]))
        elif line.strip():
            collected[-1][1].append(line)
    return collected


def check(project, where, line, output, code):
    if line.startswith("make "):  # its target is checked below: it would start these tests again
        return
    exit_code, printed = run(project, line)
    assert exit_code == code, f"{where}: `{line}` ended with {exit_code}, the page says {code}:\n{printed}"
    rest = [" ".join(text.split()) for text in printed.splitlines()]
    for expected in output:
        pattern = ".*".join(map(re.escape, re.split(r"\s*…\s*", " ".join(expected.split()))))
        at = next((i for i, text in enumerate(rest) if re.fullmatch(pattern, text)), None)
        assert at is not None, f"{where}: `{line}` did not print {expected!r} (then or at all):\n{printed}"
        rest = rest[at + 1:]


def test_unexecuted_commands_of_pages_are_parsed_successfully(page, pytester):
    targets = makefile_targets()
    lines = [line for block in page.blocks if block.language in RUN for line, _, _ in commands(block)
             if needs_more(block) or line.startswith("make ")]
    for line in [*lines, *page.spans]:
        words = words_of(line)
        if words[:1] == ["make"] and len(words) > 1:
            wanted = {word for word in words[1:] if "=" not in word}
            assert wanted <= targets, f"{line}: the Makefile has no {wanted - targets}"
        elif words[:1] == ["pytest"]:
            pytester.parseconfig(*words[1:])
        elif words[:1] == ["llmperf"] and len(words) > 1:
            of_group = words[1] in ("baselines", "trace") and len(words) == 3
            named = len(words) == 2 or of_group  # a command without its arguments
            assert llmperf_takes([*words[1:], "--help"] if named else words[1:]), line


def words_of(line):
    """The words of the first command in a line. Empty if a placeholder means that the line cannot be executed."""
    if "…" in line or "[" in line:
        return []
    command = re.split(r"\s(?:#|\|\|?|&&|>)\s", line)[0].removeprefix(".venv/bin/")
    try:
        return shlex.split(command)
    except ValueError:
        return []


def llmperf_takes(words):
    from pytest_llmperf.cli.parser import parser

    try:
        parser().parse_args(words)
    except SystemExit as end:  # --help and --version end well
        return not end.code
    return True


def makefile_targets():
    return set(re.findall(r"^([\w-]+):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_page_block_has_known_language_and_is_parsed(page):
    words = {"python", *RUN, *READ}
    for block in page.blocks:
        assert block.language in words, f"{page.path.name}:{block.line}: {block.language!r} is none of {sorted(words)}"
        if block.language in READ:
            READ[block.language](block.text)
        if block.language == "python":
            compile(block.text, f"{page.path.name}:{block.line}", "exec")
