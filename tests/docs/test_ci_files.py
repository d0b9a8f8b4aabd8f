"""`docs/ci`: schemas and linters where the test environment has them; scripts run in a project with only `suites/`."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from string import Template

import httpx
import kubernetes_validate
import pytest
import yaml
from tree_sitter import Language, Parser
from tree_sitter_groovy import language

from pytest_llmperf.load.ray_hosts import NODE_RESOURCE

ROOT = Path(__file__).parents[2]
CI = ROOT / "docs" / "ci"
BIN = Path(sys.executable).parent
SCHEMAS = {
    "github/action.yml": ("vendor.github-actions",),
    "github/llmperf.yml": ("vendor.github-workflows",),
    "gitlab-ci.yml": ("vendor.gitlab-ci", "--data-transform", "gitlab-ci"),
    "buildkite.yml": ("vendor.buildkite",),
}
JOBS = ("kubernetes-job.yaml", "kubernetes-init.yaml")
WHEEL = "ci/pytest_llmperf-0.1.0-py3-none-any.whl"
COMMENT = ".llmperf/comment.md"
POST = "llmperf comment .llmperf/junit.xml --post"
GROOVY = Path("/usr/share/java/groovy-all.jar")
SUITE = """
import pytest
from pytest_llmperf import closed, random_tokens, vllm

@pytest.mark.h200
def test_it(perf):
    run = perf.measure(vllm("llama-3.1-8b", max_model_len=8192),
                       random_tokens(input=64, output=8, arrivals=closed(2), requests=12))
    perf.check(run, "error_rate == 0")
"""


def loaded(name):
    return yaml.safe_load((CI / name).read_text())


def executable(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def bash(text, folder, **variables):
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTEST_ADDOPTS", "CI")}
    inherited["WHEEL"] = WHEEL
    return subprocess.run(["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", text], cwd=folder, timeout=600,
                          env=inherited | {"PATH": path} | variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, check=False)


@pytest.fixture
def project(tmp_path):
    """A project with `suites/` and the copied script; its environment has the plugin, and pip installs nothing."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites" / "test_it.py").write_text(SUITE)
    (tmp_path / "ci").mkdir()
    (tmp_path / WHEEL).touch()
    for name in ("llmperf.sh", "slurm.sh", "canary.sh", "flagger_webhook.py"):
        shutil.copy(CI / name, tmp_path / "ci" / name)
    environment = tmp_path / ".venv-llmperf" / "bin"
    executable(environment / "python", 'echo "$@" >> pip.log')
    executable(environment / "pytest", f'exec "{sys.executable}" -m pytest -p no:cacheprovider "$@"')
    executable(environment / "llmperf", f'exec "{sys.executable}" -m pytest_llmperf "$@"')
    executable(tmp_path / "bin" / "buildkite-agent", 'echo buildkite-agent "$@" >> calls.log')
    return tmp_path


def replace_pytest(project, code):
    executable(project / ".venv-llmperf" / "bin" / "pytest", f'echo "$@" >> pytest.log; exit {code}')
    executable(project / ".venv-llmperf" / "bin" / "llmperf", 'echo llmperf "$@" >> calls.log; echo verdicts')


@pytest.mark.parametrize("name", SCHEMAS)
def test_ci_file_matches_schema(name):
    schema, *options = SCHEMAS[name]
    command = [BIN / "check-jsonschema", "--builtin-schema", schema, *options, CI / name]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_ci_scripts_pass_shellcheck():
    checked = subprocess.run([BIN / "shellcheck", *CI.glob("*.sh")], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


def test_reusable_workflow_passes_actionlint(tmp_path):
    """In a project of its own, where actionlint also finds the composite action and compares its inputs."""
    for source, copy in (("llmperf.yml", "workflows/llmperf.yml"), ("action.yml", "actions/llmperf/action.yml")):
        (tmp_path / ".github" / copy).parent.mkdir(parents=True)
        shutil.copy(CI / "github" / source, tmp_path / ".github" / copy)
    shutil.copy(ROOT / ".github" / "actionlint.yaml", tmp_path / ".github")
    checked = bash(f"git init -q . && {BIN}/actionlint -shellcheck {BIN}/shellcheck", tmp_path)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.emulated
def test_script_measures_suites_and_writes_comment(project):
    done = bash("sh ci/llmperf.sh --emulate h200", project, KIND="h200")
    assert done.returncode == 0, done.stdout
    assert (project / "pip.log").read_text().endswith(f"{WHEEL}\n")
    assert 'name="test_it"' in (project / ".llmperf" / "junit.xml").read_text()
    assert "test_it" in (project / COMMENT).read_text()


@pytest.mark.parametrize(("wheel", "sentence"), [
    ("", "WHEEL is not set. Set WHEEL to the path of a pytest-llmperf wheel"),
    ("pytest-llmperf", "WHEEL is pytest-llmperf, and there is no such file."),
    ("ci", "WHEEL is ci, and there is no such file."),
    ("https://host.example/a.whl", "a URL without https or without #sha256=HASH."),
    ("http://host.example/a.whl#sha256=ab", "a URL without https or without #sha256=HASH."),
    ("git+https://host.example/a.git", "a URL without https or without #sha256=HASH."),
])
def test_script_without_explicit_wheel_ends_before_installing(project, wheel, sentence):
    done = bash("sh ci/llmperf.sh", project, KIND="h200", WHEEL=wheel)
    assert (done.returncode, sentence in done.stdout) == (2, True), done.stdout
    assert not (project / "pip.log").exists()
    assert not (project / ".llmperf").exists()


def test_no_ci_file_names_a_package_of_an_index():
    texts = [path.read_text() for path in CI.rglob("*") if path.is_file()]
    assert not [line for text in texts for line in text.splitlines()
                if re.search(r"(?:default:|WHEEL[:=]-?|install) *\"?pytest-llmperf", line)]


def test_script_without_gpu_fails_and_writes_comment(project):
    if shutil.which("nvidia-smi"):
        pytest.skip("this machine may have that GPU")
    done = bash("sh ci/llmperf.sh", project, KIND="h200")
    assert done.returncode == 4, done.stdout
    assert "exit code 4" in (project / COMMENT).read_text()


@pytest.mark.parametrize(("code", "red"), [(0, 0), (1, 1), (4, 4), (11, 0)])
def test_github_action_passes_inconclusive_suite_with_warning(project, code, red):
    replace_pytest(project, code)
    (step,) = loaded("github/action.yml")["runs"]["steps"]
    done = bash(step["run"], project, KIND="h200", ENGINE="/opt/v", OPTIONS="-k it",
                GITHUB_STEP_SUMMARY=str(project / "summary.md"))
    assert done.returncode == red, done.stdout
    assert ("::warning" in done.stdout) == (code == 11)
    assert "--llmperf-engine vllm=/opt/v -k it" in (project / "pytest.log").read_text()
    assert "verdicts" in (project / "summary.md").read_text()


def test_gitlab_job_accepts_only_inconclusive_exit_code(project):
    replace_pytest(project, 11)
    job = loaded("gitlab-ci.yml")["llmperf"]
    done = bash("\n".join(job["script"]), project, **job["variables"])
    assert [done.returncode] == job["allow_failure"]["exit_codes"]
    for request, posts in (("", 0), ("7", 1)):
        (project / "calls.log").write_text("")
        bash("\n".join(job["after_script"]), project, CI_MERGE_REQUEST_IID=request)
        assert (project / "calls.log").read_text() == f"{POST} gitlab\n" * posts


def test_buildkite_step_accepts_only_inconclusive_exit_code(project):
    replace_pytest(project, 11)
    measure, _, comment = loaded("buildkite.yml")["steps"]
    done = bash(measure["command"], project, **measure["env"])
    assert [{"exit_status": done.returncode}] == measure["soft_fail"]
    executable(project / "bin" / "python3", "exit 0")
    done = bash(comment["command"].replace("$$", "$"), project, BUILDKITE_PULL_REQUEST="7", **comment["env"])
    assert done.returncode == 0, done.stdout
    assert (project / "calls.log").read_text().endswith(f"{POST} github --repository OWNER/NAME\n")


def test_workflow_and_jenkinsfile_comment_is_one_command(project):
    (step,) = [step for step in loaded("github/llmperf.yml")["jobs"]["llmperf"]["steps"] if "run" in step]
    replace_pytest(project, 0)
    bash(step["run"], project)
    assert (project / "calls.log").read_text() == f"{POST} github\n"
    assert f".venv-llmperf/bin/{POST} github" in (CI / "Jenkinsfile").read_text()


def test_jenkinsfile_is_syntactically_valid():
    tree = Parser(Language(language())).parse((CI / "Jenkinsfile").read_bytes())
    assert not tree.root_node.has_error, str(tree.root_node)


@pytest.mark.emulated
@pytest.mark.parametrize(("code", "result"), [(0, "SUCCESS"), (1, "FAILURE"), (11, "UNSTABLE")])
def test_jenkinsfile_result_follows_exit_code_of_pytest(project, code, result):
    """Groovy runs the pipeline; `jenkins_steps.groovy` has the steps of Jenkins."""
    if not GROOVY.exists() or shutil.which("java") is None:
        if os.environ.get("CI"):
            pytest.fail("Groovy is missing. Run: sh scripts/install_test_packages.sh")
        pytest.skip("Groovy is missing. Run: sh scripts/install_test_packages.sh")
    replace_pytest(project, code)
    steps = Path(__file__).with_name("jenkins_steps.groovy")
    done = bash(f"java -cp {GROOVY} groovy.ui.GroovyMain {steps} {CI / 'Jenkinsfile'} 7", project)
    assert done.stdout.splitlines()[-1] == result, done.stdout
    assert (project / "pytest.log").read_text().startswith("-m h200 suites/")
    assert (project / "calls.log").read_text().endswith(f"{POST} github --repository OWNER/NAME\n")
    assert "testResults:.llmperf/junit.xml" in done.stdout


def test_slurm_script_ends_with_exit_code_of_pytest(project):
    replace_pytest(project, 11)
    (project / "elsewhere").mkdir()
    executable(project / "bin" / "sbatch", 'shift; cd elsewhere && SLURM_SUBMIT_DIR="$OLDPWD" exec bash "../$@"')
    done = bash("sbatch --wait ci/slurm.sh -k it", project)
    assert done.returncode == 11, done.stdout
    assert (project / "pytest.log").read_text().startswith("-m h200 suites/")


def test_ray_job_starts_every_node_and_ends_with_exit_code_of_pytest(project):
    """Slurm and Ray write down how they are called; the client server of the head is a socket here."""
    shutil.copy(CI / "ray-slurm.sh", project / "ci" / "ray-slurm.sh")
    environment = project / ".venv" / "bin"
    executable(environment / "activate", 'PATH="$PWD/.venv/bin:$PATH"')
    executable(environment / "pytest", 'echo "$@" > pytest.log; exit 11')
    executable(environment / "ray", '[ "$1" = status ] || exit 3; printf " 1 node_a\\n 1 node_b\\n 1 node_c\\n"')
    executable(environment / "python", "exit 0")
    executable(project / "bin" / "scontrol", "printf '%s\\n' n1 n2 n3")
    executable(project / "bin" / "srun", 'echo "$@" >> srun.log; exec sleep 60')
    done = bash("bash ci/ray-slurm.sh suites -k it", project, SLURM_JOB_NODELIST="n[1-3]", SLURM_JOB_NUM_NODES="3",
                SLURM_CPUS_PER_TASK="6")
    assert done.returncode == 11, done.stdout
    assert (project / "pytest.log").read_text() == "--llmperf-set=load_hosts=ray://n1:10001 suites -k it\n"
    calls = sorted((project / "srun.log").read_text().splitlines())
    assert len(calls) == 2
    assert all(words in calls[0] for words in ("--nodelist=n1", "ray start --block --head", "--num-cpus=6"))
    assert all(words in calls[1] for words in ("--nodes=2", "--exclude=n1", "ray start --block --address=n1:6379"))


def test_ray_cluster_has_load_hosts_apart_from_head():
    cluster = loaded("ray-cluster.yaml")["spec"]
    (group,) = cluster["workerGroupSpecs"]
    assert json.loads(json.loads(group["rayStartParams"]["resources"])) == {NODE_RESOURCE: 1}
    assert cluster["headGroupSpec"]["rayStartParams"] == {"num-cpus": "0", "ray-client-server-port": "10001"}
    images = [container["image"] for each in (cluster["headGroupSpec"], group)
              for container in each["template"]["spec"]["containers"]]
    assert len(set(images)) == 1
    (spread,) = group["template"]["spec"]["topologySpreadConstraints"]
    assert (spread["topologyKey"], spread["whenUnsatisfiable"]) == ("kubernetes.io/hostname", "DoNotSchedule")


@pytest.mark.parametrize("name", JOBS)
def test_kubernetes_job_matches_schema(name):
    job = loaded(name)
    kubernetes_validate.validate(job, "1.37", strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job | {"spec": job["spec"] | {"parallel": 1}}, "1.37", strict=True)


@pytest.mark.parametrize("name", JOBS)
def test_kubernetes_job_runs_on_one_gpu(name):
    job = loaded(name)
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    assert pod["restartPolicy"] == "Never"
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}


def action(rules, *, exit_code=0, condition=""):
    """What Kubernetes does with a failed pod, and the number of the rule: the first rule that matches decides."""
    for number, rule in enumerate(rules):
        codes = rule.get("onExitCodes", {"operator": "In", "values": []})
        matches = (exit_code in codes["values"]) is (codes["operator"] == "In") and exit_code != 0
        if matches or condition in [each["type"] for each in rule.get("onPodConditions", ())]:
            return rule["action"], number
    return "Count", None


@pytest.mark.parametrize("name", JOBS)
def test_kubernetes_job_repeats_errors_and_drained_pods_alone(name):
    spec = loaded(name)["spec"]
    rules = spec["podFailurePolicy"]["rules"]
    assert spec["backoffLimit"] == 1
    assert {rule["onExitCodes"]["containerName"] for rule in rules if "onExitCodes" in rule} == {
        spec["template"]["spec"]["containers"][0]["name"]}
    assert action(rules, exit_code=137, condition="DisruptionTarget")[0] == "Ignore"
    assert action(rules, exit_code=10) == ("Count", None)
    inconclusive, failed = action(rules, exit_code=11), action(rules, exit_code=1)
    assert (inconclusive[0], failed[0]) == ("FailJob", "FailJob")
    assert inconclusive[1] != failed[1]  # the message of the Job's condition names the rule
    assert {action(rules, exit_code=code) for code in (2, 4, 5, 12, 137)} == {failed}


def test_pod_of_production_image_keeps_to_the_restricted_standard():
    pod = loaded("kubernetes-init.yaml")["spec"]["template"]["spec"]
    assert (pod["securityContext"]["runAsNonRoot"], pod["automountServiceAccountToken"]) == (True, False)
    for container in (*pod["initContainers"], *pod["containers"]):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}


@pytest.mark.parametrize("name", ["Containerfile", "Containerfile.init"])
def test_containerfile_passes_hadolint(name):
    checked = subprocess.run([BIN / "hadolint", CI / name], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.emulated
def test_image_measures_suites_in_kubernetes_job(project, tmp_path_factory):
    """The instructions of the image run in a folder that stands for the root of its file system; packages are stubs.
    Then the container of the job runs as a kubelet would start it."""
    root = tmp_path_factory.mktemp("root")
    stub_installations(project / "bin", root)
    variables, entrypoint, folder = built_image(project, root)
    (container,) = loaded("kubernetes-job.yaml")["spec"]["template"]["spec"]["containers"]
    variables |= {pair["name"]: pair["value"] for pair in container["env"]}
    done = bash(f"{' '.join(entrypoint)} --emulate h200", folder, **variables)
    assert done.returncode == 0, done.stdout
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    results = root / mounts["results"].lstrip("/")
    assert 'name="test_it"' in (results / "junit.xml").read_text()
    assert "test_it" in (results / "comment.md").read_text()
    installed = (root / "pip.log").read_text()
    assert "engines/vllm: install --no-cache-dir vllm==0.26.0\n" in installed
    assert f"opt/llmperf: install --no-cache-dir {WHEEL}\n" in installed


def stub_installations(folder, root):
    """`apt-get` installs nothing, and `python3 -m venv` makes an environment with the plugin of this one."""
    commands = {
        "pip": f'echo "$(dirname "$(dirname "$0")"): $*" >> {root}/pip.log',
        "python": "exit 0",
        "pytest": f'exec "{sys.executable}" -m pytest -p no:cacheprovider "$@"',
        "llmperf": f'exec "{sys.executable}" -m pytest_llmperf "$@"',
    }
    for name, command in commands.items():
        executable(root / "commands" / name, command)
    executable(folder / "python3", f'mkdir -p "$3" && cp -r {root}/commands "$3/bin"')
    executable(folder / "apt-get", "exit 0")


def built_image(project, root, **arguments):
    """Run the instructions of the Containerfile; absolute paths lie in `root`.

    Returns:
        The environment variables, the words of the entry point, the working folder.
    """
    variables, folder, entrypoint = dict[str, str](), root, []
    for line in (CI / "Containerfile").read_text().splitlines():
        name, _, rest = line.partition(" ")
        rest = re.sub(r"(?<![\w}/.:])/(?=\w)", f"{root}/", rest)
        if name == "ARG":
            key, _, value = rest.partition("=")
            variables[key] = arguments.get(key, value)
        elif name == "ENV":
            expanded = Template(rest).substitute(variables)
            variables |= dict(pair.split("=", 1) for pair in expanded.split())
        elif name == "WORKDIR":
            folder = Path(rest)
            folder.mkdir(parents=True)
        elif name == "COPY":
            assert rest == ". ."
            shutil.copytree(project, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("bin", ".venv-llmperf"))
        elif name == "RUN":
            done = bash(rest, folder, PATH=f"{project / 'bin'}:{os.environ['PATH']}", **variables)
            assert done.returncode == 0, done.stdout
        elif name == "ENTRYPOINT":
            entrypoint = json.loads(rest)
    return variables, entrypoint, folder


CANARY = {"CANARY": "http://canary:1", "STABLE": "http://stable:1"}


@pytest.mark.parametrize(("code", "undecided", "exit_code"), [
    (0, "11", 0), (1, "11", 1), (10, "11", 10), (11, "11", 11), (11, "0", 0),
])
def test_canary_script_ends_with_code_of_pytest_and_one_line(project, code, undecided, exit_code):
    replace_pytest(project, code)
    done = bash("sh ci/canary.sh", project, **CANARY, UNDECIDED=undecided, LINE=str(project / "line"))
    assert (done.returncode, (project / "line").read_text()) == (exit_code, "verdicts\n"), done.stdout
    assert done.stdout.splitlines()[-1] == "verdicts"
    assert (project / "pytest.log").read_text() == "canary/\n"


def test_canary_script_without_a_stable_service_ends_before_pytest(project):
    done = bash("sh ci/canary.sh", project, CANARY="http://canary:1")
    assert done.returncode == 2, done.stdout
    assert "set STABLE to the address of the stable service" in done.stdout


def test_argo_job_retries_errors_alone_and_matches_schema():
    template, rollout = yaml.safe_load_all((CI / "argo-rollouts.yaml").read_text())
    (metric,) = template["spec"]["metrics"]
    spec = metric["provider"]["job"]["spec"]
    kubernetes_validate.validate({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "m"}, "spec": spec},
                                 "1.37", strict=True)
    (rule,) = spec["podFailurePolicy"]["rules"]
    assert (rule["action"], rule["onExitCodes"]["values"], spec["backoffLimit"]) == ("FailJob", [1, 11], 1)
    assert rule["onExitCodes"]["containerName"] == spec["template"]["spec"]["containers"][0]["name"]
    (analysis,) = rollout["spec"]["strategy"]["canary"]["steps"][0]["experiment"]["analyses"]
    assert analysis["templateName"] == template["metadata"]["name"]
    assert [each["name"] for each in analysis["args"]] == [each["name"] for each in template["spec"]["args"]]


@pytest.mark.parametrize(("code", "status"), [(0, 200), (1, 409), (11, 409)])
def test_flagger_webhook_answers_with_the_verdict_in_one_line(project, code, status):
    replace_pytest(project, code)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    (hook,) = loaded("flagger.yaml")["spec"]["analysis"]["webhooks"]
    payload = {"name": "llm", "namespace": "test", "phase": "Progressing", "metadata": hook["metadata"]}
    server = subprocess.Popen([sys.executable, "ci/flagger_webhook.py", str(port)], cwd=project)
    try:
        client = httpx.Client(transport=httpx.HTTPTransport(retries=8))
        answer = client.post(f"http://127.0.0.1:{port}/", json=payload, timeout=60)
    finally:
        server.kill()
        server.wait()
    assert (answer.status_code, answer.text) == (status, "verdicts")
