"""`llmperf comment --post` against a scripted API on 127.0.0.1: one comment, updated; a sentence for each refusal."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from pytest_llmperf import CheckResult, Verdict
from pytest_llmperf.cli import main
from pytest_llmperf.cli.review_service import this_job
from pytest_llmperf.metrics import measure
from pytest_llmperf.results.check import Stated
from pytest_llmperf.results.measurement import Measurement, Run
from pytest_llmperf.results.writer import write_test
from pytest_llmperf.testing.records import make_record

MARKER = "<!-- llmperf comment: h200 -->"
GITHUB = {"GITHUB_TOKEN": "secret-token", "GITHUB_REPOSITORY": "owner/name", "CHANGE_ID": "7", "GIT_COMMIT": "a" * 40}
GITLAB = {"GITLAB_TOKEN": "secret-token", "CI_PROJECT_ID": "12", "CI_MERGE_REQUEST_IID": "7", "CI_COMMIT_SHA": "b" * 40}
ENVIRONMENTS = {"github": GITHUB, "gitlab": GITLAB}
VARIABLES = (*GITHUB, *GITLAB, "GH_TOKEN", "GITHUB_API_URL", "GITHUB_EVENT_PATH", "GITHUB_SERVER_URL", "GITHUB_RUN_ID",
             "BUILDKITE_PULL_REQUEST", "BUILDKITE_COMMIT", "CI_API_V4_URL", "CI_MERGE_REQUEST_SOURCE_BRANCH_SHA",
             "CI_JOB_URL", "BUILD_URL", "BUILDKITE_BUILD_URL")


class Api(ThreadingHTTPServer):
    """Comments and status checks of one request. `refusals`: method → (status, body) instead of the answer."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.comments, self.statuses, self.calls, self.refusals = [], [], [], {}
        self.page_size, self.limit, self.headers = 2, 65_536, []


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def answer(self, status, content, **headers):
        body = content.encode() if isinstance(content, str) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def handle_any(self):
        api, url = self.server, urlsplit(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else {}
        api.calls.append((self.command, url.path))
        api.headers.append(dict(self.headers))
        refusal = api.refusals.get((self.command, url.path.split("/")[-2])) or api.refusals.get(self.command)
        if refusal:
            self.answer(*refusal)
        elif self.command == "GET":
            page = int(parse_qs(url.query).get("page", ["1"])[0])
            shown = api.comments[(page - 1) * api.page_size:page * api.page_size]
            more = page * api.page_size < len(api.comments)
            link = {"Link": f'<{api.url}{url.path}?per_page=100&page={page + 1}>; rel="next"'} if more else {}
            self.answer(200, shown, **link)
        elif "/statuses/" in url.path:
            api.statuses.append(body)
            self.answer(201, body)
        elif len(body["body"]) > api.limit:
            self.answer(422, {"message": "Validation Failed: body is too long (maximum is 65536 characters)"})
        elif self.command == "POST":
            api.comments.append({"id": 100 + len(api.comments), "body": body["body"], "html_url": "https://host/c"})
            self.answer(201, api.comments[-1])
        else:
            (comment,) = [each for each in api.comments if str(each["id"]) == url.path.rpartition("/")[2]]
            comment["body"] = body["body"]
            self.answer(200, comment)

    do_GET = do_POST = do_PATCH = do_PUT = handle_any  # noqa: N815 - names of http.server


@pytest.fixture
def api():
    server = Api()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    write_run(tmp_path / "good")
    return tmp_path


def write_run(folder, verdict=Verdict.PASS, test="t.py::test_x[h200]", hardware="h200", error=None):
    records = [make_record(i, intended_ms=i, ttft_ms=50) for i in range(3)]
    runs = tuple(Run(seed, 1, tuple(records)) for seed in range(2))
    measured = Measurement("vllm('m')", "w", {"hardware": hardware}, runs, tuple(measure(run.records) for run in runs))
    cause = None if verdict is Verdict.PASS else Stated("slow")
    write_test(folder, test, [measured], [CheckResult("ttft_p50 <= 1s", verdict, "ttft_p50", cause=cause)],
               complete=error is None, error=error)


def post(api, service, monkeypatch, *arguments, run="good", **env):
    for name, value in (ENVIRONMENTS[service] | env).items():
        monkeypatch.setenv(name, value)
    return main(["comment", run, "--post", service, "--api", api.url, *arguments])


@pytest.mark.parametrize("service", ["github", "gitlab"])
def test_comment_is_written_once_and_then_updated(here, api, service, monkeypatch, capsys):
    api.comments += [{"id": number, "body": f"> {MARKER}\nquoted"} for number in range(5)]
    assert post(api, service, monkeypatch) == 0
    assert "the comment is written" in capsys.readouterr().out
    write_run(here / "bad", Verdict.FAIL)
    assert post(api, service, monkeypatch, run="bad") == 0
    assert "the comment is updated" in capsys.readouterr().out
    ours = [comment["body"] for comment in api.comments if comment["body"].startswith(MARKER)]
    assert len(ours) == 1
    assert "❌ FAIL" in ours[0]
    assert [status["state"] for status in api.statuses] == [
        "success", {"github": "failure", "gitlab": "failed"}[service]]
    assert api.statuses[1]["description"] == "1 FAIL"
    assert {status.get("context") or status.get("name") for status in api.statuses} == {"llmperf/h200"}


def test_requests_go_to_documented_paths_with_the_token(here, api, monkeypatch):
    assert post(api, "github", monkeypatch) == 0
    comments = "/repos/owner/name/issues/7/comments"
    assert api.calls == [("GET", comments), ("POST", comments), ("POST", f"/repos/owner/name/statuses/{'a' * 40}")]
    assert {each["Authorization"] for each in api.headers} == {"Bearer secret-token"}
    api.calls.clear()
    api.comments.clear()
    api.headers.clear()
    assert post(api, "gitlab", monkeypatch, "--repository", "group/sub/name") == 0
    assert api.calls[1:] == [("POST", "/projects/group%2Fsub%2Fname/merge_requests/7/notes"),
                             ("POST", f"/projects/group%2Fsub%2Fname/statuses/{'b' * 40}")]
    assert {each["PRIVATE-TOKEN"] for each in api.headers} == {"secret-token"}


def test_event_of_github_actions_gives_pull_request_and_head_commit(here, api, monkeypatch):
    event = {"pull_request": {"number": 9, "head": {"sha": "c" * 40}}}
    (here / "event.json").write_text(json.dumps(event))
    assert post(api, "github", monkeypatch, GITHUB_EVENT_PATH=str(here / "event.json")) == 0
    assert api.calls[1:] == [("POST", "/repos/owner/name/issues/9/comments"),
                             ("POST", f"/repos/owner/name/statuses/{'c' * 40}")]


ACKNOWLEDGE = ("acknowledge", "it", "m", "--reason=r", "--until=2999-12-31", "--run")


@pytest.mark.parametrize(("command", "expected"), [
    (("comment",), "no test that was measured. Run the tests again."), (ACKNOWLEDGE, "There are: none."),
])
@pytest.mark.parametrize("make", ["mkdir", "touch"])
def test_run_folder_without_its_run_files_is_refused_in_a_sentence(here, capsys, command, expected, make):
    (here / "run").mkdir()
    recorded = {"test": "t.py::test_it", "file": "t.py-test_it-1.json", "outcome": "FAIL", "error": ""}
    (here / "run/outcomes.json").write_text(json.dumps({"schema": 1, "tests": [recorded]}))
    getattr(here / "run/tests", make)()
    assert main([*command, "run"]) == 2
    assert expected in capsys.readouterr().err


def test_session_without_a_commit_states_none(here, capsys):
    write_run(here / "run")
    (here / "run/session.json").write_text(json.dumps({"schema": 1, "session": "run", "commit": None}))
    assert main(["comment", "run"]) == 0
    assert "commit" not in capsys.readouterr().out


def test_other_hardware_kind_has_another_comment(here, api, monkeypatch):
    write_run(here / "l4", hardware="l4")
    assert [post(api, "github", monkeypatch, run=run) for run in ("good", "l4", "good", "l4")] == [0, 0, 0, 0]
    assert len(api.comments) == 2
    assert [status["context"] for status in api.statuses[:2]] == ["llmperf/h200", "llmperf/l4"]


@pytest.mark.parametrize("service", ["github", "gitlab"])
@pytest.mark.parametrize(("refusals", "sentence", "comments"), [
    ({"GET": (403, {"message": "Resource not accessible by integration"})}, "the token may not do this", 0),
    ({"GET": (401, {"message": "Bad credentials"})}, "the token is not valid", 0),
    ({"GET": (404, {"message": "Not Found"})}, "or the token may not see it", 0),
    ({"GET": (200, "<html>")}, "the answer is no JSON", 0),
    ({"GET": (200, {"a": 1})}, "answers with no list of comments", 0),
    ({"GET": (301, {"message": "Moved Permanently"})}, "has moved. Correct --repository or --api", 0),
    ({"GET": (204, "")}, "the answer is no JSON. Name the base of the API with --api", 0),
    ({"GET": (401, {"error": "insufficient_scope"})}, "('insufficient_scope'): the token is not valid", 0),
    ({"POST": (429, {"message": "slow down"})}, "too many requests. Run the command again later; nothing", 0),
    ({"POST": (403, {"message": "You have exceeded a secondary rate limit."})}, "limit.'): too many requests", 0),
    ({"POST": (422, {"message": "Validation Failed"})}, "('Validation Failed'): the service refuses the content", 0),
    ({"POST": (422, {"message": "Invalid", "errors": ["x", {"message": "body is too long"}, {"field": "sha"}]})},
     "('Invalid; body is too long; sha')", 0),
    ({"POST": (500, "broken")}, "the service has failed. Run the command again later; nothing was written.", 0),
    ({("POST", "statuses"): (403, {"message": "no"})}, "the token may not do this", 1),
])
def test_refusal_is_one_sentence_that_says_what_was_written(
    here, api, service, refusals, sentence, comments, monkeypatch, capsys
):
    api.refusals = refusals
    assert post(api, service, monkeypatch) == 2
    error = capsys.readouterr().err
    assert error.startswith("llmperf comment: ")
    assert sentence in error
    assert "secret-token" not in error
    assert ("; the comment is written." if comments else "; nothing was written.") in error
    assert len(api.comments) == comments
    api.refusals = {}
    assert [post(api, service, monkeypatch) for _ in range(2)] == [0, 0]
    assert len(api.comments) == 1


def test_unreachable_service_is_one_sentence(here, monkeypatch, capsys):
    server = Api()
    server.server_close()
    assert post(server, "github", monkeypatch) == 2
    assert "does not answer" in capsys.readouterr().err


def test_next_page_of_another_host_is_not_followed(here, api, monkeypatch, capsys):
    api.comments += [{"id": number, "body": "x"} for number in range(3)]
    own, api.url = api.url, "http://other.example"
    for name, value in GITHUB.items():
        monkeypatch.setenv(name, value)
    assert main(["comment", "good", "--post", "github", "--api", own]) == 2
    assert "as its next page, which is of another API" in capsys.readouterr().err
    assert len(api.comments) == 3


@pytest.mark.parametrize(("service", "missing", "sentence"), [
    ("github", "GITHUB_TOKEN", "GITHUB_TOKEN or GH_TOKEN is not set. Set it to a token with the permissions"),
    ("gitlab", "GITLAB_TOKEN", 'GITLAB_TOKEN is not set. Set it to a token with the scope "api"'),
    ("github", "GITHUB_REPOSITORY", "no CI job of a pull request that states the repository. Add --repository."),
    ("github", "CHANGE_ID", "no CI job of a pull request that states the request. Add --request."),
    ("gitlab", "CI_COMMIT_SHA", "no CI job of a merge request that states the commit. Add --commit."),
])
def test_missing_token_or_place_is_named_and_nothing_is_sent(
    here, api, service, missing, sentence, monkeypatch, capsys
):
    assert post(api, service, monkeypatch, **{missing: ""}) == 2
    assert sentence in capsys.readouterr().err
    assert api.calls == []


@pytest.mark.parametrize("token", ["two\nlines", "tök\u202een", "\x01", "two words"])
def test_text_that_is_no_token_is_refused_and_not_shown(here, api, token, monkeypatch, capsys):
    monkeypatch.setitem(GITHUB, "GITHUB_TOKEN", token)
    assert post(api, "github", monkeypatch) == 2
    error = capsys.readouterr().err
    assert "GITHUB_TOKEN or GH_TOKEN holds no token. Set it to a token with the permissions" in error
    assert token.split()[0] not in error
    assert api.calls == []


def test_token_of_a_file_loses_its_line_end(here, api, monkeypatch):
    assert post(api, "github", monkeypatch, GITHUB_TOKEN="secret-token\n") == 0
    assert {each["Authorization"] for each in api.headers} == {"Bearer secret-token"}


@pytest.mark.parametrize(("service", "option", "value"), [
    ("github", "--request", "abc"), ("github", "--request", "../../other"), ("gitlab", "--request", "!7"),
    ("github", "--commit", "HEAD"), ("gitlab", "--commit", "../x"), ("github", "--repository", "name"),
    ("github", "--repository", "https://github.com/owner/name"), ("gitlab", "--repository", "../12"),
])
def test_value_that_is_no_request_commit_or_repository_is_refused_before_a_request(
    here, api, service, option, value, monkeypatch, capsys
):
    assert post(api, service, monkeypatch, option, value) == 2
    assert f"{value!r} is no {option[2:]} of a " in capsys.readouterr().err
    assert api.calls == []


def test_late_answer_says_that_nothing_was_written_before(here, api, monkeypatch, capsys):
    monkeypatch.setattr("pytest_llmperf.cli.review_service.TIMEOUT_S", 0.1)
    monkeypatch.setattr(Handler, "do_POST", lambda _: time.sleep(0.5))
    assert post(api, "github", monkeypatch) == 2
    assert "does not answer: timed out. Until then nothing was written. Run the command" in capsys.readouterr().err


def test_wrong_base_of_the_api_and_missing_run_are_refused_before_a_request(here, api, monkeypatch, capsys):
    for name, value in GITHUB.items():
        monkeypatch.setenv(name, value)
    assert main(["comment", "good", "--post", "github", "--api", "github.com"]) == 2
    assert "--api github.com: write a URL" in capsys.readouterr().err
    assert main(["comment", "absent", "--post", "github", "--api", api.url]) == 2
    assert main(["comment", "good", "--against", "absent", "--post", "github", "--api", api.url]) == 2
    assert capsys.readouterr().err.count("absent: no run is stored") == 2
    assert api.calls == []


def test_long_comment_stays_below_limit_of_service(here, api, monkeypatch):
    for number in range(300):
        write_run(here / "many", test=f"t.py::test_{number}_{'x' * 60}", error="it failed " * 40)
    assert post(api, "github", monkeypatch, run="many") == 0
    assert len(api.comments[0]["body"]) <= 60_000


def test_long_comment_of_one_test_loses_metrics_and_states_their_number(here, api, monkeypatch):
    checks = [CheckResult(f"m{i} <= 1s", Verdict.FAIL, f"metric_{i:04d}_{'x' * 40}", cause=Stated("slow"))
              for i in range(2000)]
    write_test(here / "one", "t.py::test_x", [], checks)
    assert post(api, "github", monkeypatch, run="one") == 0
    assert len(api.comments[0]["body"]) <= 60_000
    assert "… and 1900 more metrics" in api.comments[0]["body"]


def test_base_of_another_hardware_kind_is_refused(here, capsys):
    write_run(here / "l4", hardware="l4")
    assert main(["comment", "good", "--against", "l4"]) == 2
    assert ("good was measured on h200 and l4 on l4, and only runs of one hardware kind are compared"
            in capsys.readouterr().err)


def test_base_on_another_host_is_named(here, capsys):
    write_run(here / "old")
    for name, host in (("good", "aaaa"), ("old", "bbbb")):
        (here / name / "session.json").write_text(json.dumps({"schema": 1, "host": host}))
    assert main(["comment", "good", "--against", "old"]) == 0
    assert "Hosts differ: bbbb before, aaaa now. A change may be a difference between hosts." in capsys.readouterr().out


@pytest.mark.parametrize(("env", "run", "report"), [
    ({}, "", ""),
    ({"GITHUB_SERVER_URL": "https://github.com", "GITHUB_REPOSITORY": "a/b", "GITHUB_RUN_ID": "7"},
     "https://github.com/a/b/actions/runs/7", ""),
    ({"CI_JOB_URL": "https://gitlab/j/1"}, "https://gitlab/j/1",
     "https://gitlab/j/1/artifacts/file/.llmperf/runs/id/report.html"),
    ({"BUILD_URL": "https://jenkins/1/"}, "https://jenkins/1", "https://jenkins/1/artifact/.llmperf/runs/id/report.html"),
    ({"BUILDKITE_BUILD_URL": "https://bk/1"}, "https://bk/1", ""),
])
def test_ci_job_and_its_report_are_linked(tmp_path, env, run, report):
    folder = tmp_path / "id"
    folder.mkdir()
    assert this_job(env, folder) == (run, "")
    (folder / "report.html").touch()
    assert this_job(env, folder) == (run, report)
