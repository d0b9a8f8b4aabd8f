"""GitHub and GitLab, as far as a comment on a pull or merge request and a status check need them."""

from __future__ import annotations

import json
import re
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pytest_llmperf.errors import UsageError, echo
from pytest_llmperf.report.comment import CommentedRun

if TYPE_CHECKING:
    import httpx


TIMEOUT_S = 30.0
MOST_PAGES = 100
SHOWN = 200  # characters of what a service answers
DESCRIPTION = 140  # characters that GitHub takes


@dataclass(frozen=True, slots=True)
class Service:
    """One service.

    Args:
        request: the service's word for a pull request.
        variables: name of an argument → variables of a CI job that state it, the first that is set.
        api: default URL of the service's API. A variable of the CI job replaces this URL.
        header, prefix: HTTP header of the token, and the text before the token.
        comments, comment, statuses: paths below the API.
        update: method that changes a comment.
        states: of a red and a green status check.
        context: name of the field that names the check.
        permission: what a token needs.
        shapes: name of an argument → regular expression of its values.
    """

    request: str
    variables: Mapping[str, tuple[str, ...]]
    api: str
    header: str
    prefix: str
    comments: str
    comment: str
    statuses: str
    update: str
    states: Mapping[str, str]
    context: str
    permission: str
    shapes: Mapping[str, str]


SHAPES = {"request": r"\d+", "commit": r"[0-9a-fA-F]{7,64}"}
SERVICES = {
    "github": Service(
        "pull request",
        {"token": ("GITHUB_TOKEN", "GH_TOKEN"), "api": ("GITHUB_API_URL",), "repository": ("GITHUB_REPOSITORY",),
         "request": ("CHANGE_ID", "BUILDKITE_PULL_REQUEST"), "commit": ("BUILDKITE_COMMIT", "GIT_COMMIT")},
        "https://api.github.com", "Authorization", "Bearer ",
        "repos/{repository}/issues/{request}/comments", "repos/{repository}/issues/comments/{id}",
        "repos/{repository}/statuses/{commit}", "PATCH", {"failure": "failure", "success": "success"}, "context",
        "the permissions pull-requests: write and statuses: write", {"repository": r"\w[\w.-]*/\w[\w.-]*", **SHAPES},
    ),
    "gitlab": Service(
        "merge request",
        {"token": ("GITLAB_TOKEN",), "api": ("CI_API_V4_URL",), "repository": ("CI_PROJECT_ID",),
         "request": ("CI_MERGE_REQUEST_IID",), "commit": ("CI_MERGE_REQUEST_SOURCE_BRANCH_SHA", "CI_COMMIT_SHA")},
        "https://gitlab.com/api/v4", "PRIVATE-TOKEN", "",
        "projects/{repository}/merge_requests/{request}/notes",
        "projects/{repository}/merge_requests/{request}/notes/{id}", "projects/{repository}/statuses/{commit}", "PUT",
        {"failure": "failed", "success": "success"}, "name", 'the scope "api" and the role Developer',
        {"repository": r"\d+|\w[\w.-]*(/\w[\w.-]*)+", **SHAPES},
    ),
}


@dataclass(frozen=True, slots=True)
class Place:
    """The pull request of a comment, and the commit of a status check.

    Args:
        service: one of `SERVICES`.
        api: base of the API, without "/" at its end.
        token: of the API.
        names: repository, request and commit, quoted for a path.
    """

    service: Service
    api: str
    token: str
    names: Mapping[str, str]

    def path(self, template: str, **names: object) -> str:
        return f"{self.api}/{template.format_map({**self.names, **names})}"


def place_of(arguments: Namespace, env: Mapping[str, str]) -> Place:
    """The place that the arguments name, else the CI job.

    Raises:
        UsageError: something is missing.
    """
    service = SERVICES[arguments.post]
    stated = {name: next(filter(None, map(env.get, variables)), "") for name, variables in service.variables.items()}
    if arguments.post == "github":
        stated |= {name: value for name, value in _of_event(env).items() if value}
    stated |= {name: value for name in stated if (value := getattr(arguments, name, None))}
    stated["token"] = stated["token"].strip()
    if not re.fullmatch(r"[!-~]+", stated["token"]):
        state = "holds no token" if stated["token"] else "is not set"
        raise UsageError(f"--post {arguments.post}: {' or '.join(service.variables['token'])} {state}. Set it to a "
                         f"token with {service.permission}.")
    for name in ("repository", "request", "commit"):
        if not stated[name] or stated[name] == "false":  # Buildkite's word for no pull request
            raise UsageError(f"--post {arguments.post}: this is no CI job of a {service.request} that states the "
                             f"{name}. Add --{name}.")
        if not re.fullmatch(service.shapes[name], stated[name], re.ASCII):
            raise UsageError(f"--post {arguments.post}: {echo(stated[name])} is no {name} of a {service.request}. "
                             f"Correct --{name}.")
    api = (stated["api"] or service.api).rstrip("/")
    if not re.match(r"https?://[^/]", api):
        raise UsageError(f"--api {api}: write a URL, such as {service.api}.")
    safe = "/" if arguments.post == "github" else ""
    return Place(service, api, stated["token"], {name: quote(stated[name], safe=safe)
                                                 for name in ("repository", "request", "commit")})


def _of_event(env: Mapping[str, str]) -> dict[str, str]:
    """Number and head commit of the pull request of a GitHub Actions job. GITHUB_SHA is a merge commit, whose status
    checks no pull request shows."""
    try:
        event = json.loads(Path(env["GITHUB_EVENT_PATH"]).read_text(encoding="utf-8"))
        request = event["pull_request"]
        return {"request": str(request["number"]), "commit": str(request["head"]["sha"])}
    except (KeyError, TypeError, OSError, ValueError):
        return {}


def this_job(env: Mapping[str, str], run_folder: Path | None) -> tuple[str, str]:
    """Page of the CI job of this process, and of the report among the artefacts of the job; "" if unknown."""
    server, repository, run_id = (env.get(f"GITHUB_{name}", "") for name in ("SERVER_URL", "REPOSITORY", "RUN_ID"))
    if server and repository and run_id:
        return f"{server}/{repository}/actions/runs/{run_id}", ""
    job = next(filter(None, map(env.get, ("CI_JOB_URL", "BUILD_URL", "BUILDKITE_BUILD_URL"))), "").rstrip("/")
    artefacts = {"CI_JOB_URL": "artifacts/file", "BUILD_URL": "artifact"}
    folder = next((place for name, place in artefacts.items() if env.get(name)), "")
    if not folder or run_folder is None or not (run_folder / "report.html").is_file():
        return job, ""
    return job, f"{job}/{folder}/.llmperf/runs/{quote(run_folder.name)}/report.html"


def post(place: Place, run: CommentedRun, text: str) -> str:
    """Write the comment, or change the comment that begins with the same marker; then set the status check.

    Args:
        text: the comment of the run.

    Returns:
        What was done.

    Raises:
        UsageError: the service refuses or does not answer. The message says what was written before.
    """
    import httpx

    headers = {place.service.header: place.service.prefix + place.token, "User-Agent": "pytest-llmperf"}
    done = "nothing was written"
    try:
        with httpx.Client(headers=headers, timeout=TIMEOUT_S) as client:
            comments = _comments(client, place)
            stored = next((each for each in comments if str(each.get("body")).startswith(run.marker)), None)
            if stored is None:
                written = _answer(client.post(place.path(place.service.comments), json={"body": text}), place)
            else:
                path = place.path(place.service.comment, id=stored["id"])
                written = _answer(client.request(place.service.update, path, json={"body": text}), place)
            done = f"the comment is {'written' if stored is None else 'updated'}"
            state, description = run.status
            target = {"target_url": run.link} if run.link else {}
            _answer(client.post(place.path(place.service.statuses), json={
                "state": place.service.states[state], place.service.context: f"llmperf/{run.kinds}",
                "description": description[:DESCRIPTION], **target}), place)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise UsageError(f"{place.api} does not answer: {str(error).rstrip('.')}. Until then {done}. Run the command "
                         "again: a second run updates the comment.") from error
    except _Refused as error:
        raise UsageError(f"{error}; {done}.") from error
    address = written.get("html_url", "") if isinstance(written, dict) else ""
    return f"{done}{f': {address}' if address else ''}; llmperf/{run.kinds} is {state}: {description}"


class _Refused(Exception):
    """The service has answered and has not done what was asked."""


def _comments(client: httpx.Client, place: Place) -> Iterator[dict[str, Any]]:
    """Every comment of the request, over all pages, the oldest first."""
    url: str | None = f"{place.path(place.service.comments)}?per_page=100&sort=asc"
    for _ in range(MOST_PAGES):
        answer = client.get(url or "")
        comments = _answer(answer, place)
        if not isinstance(comments, list):
            raise _Refused(f"{place.api} answers with no list of comments. Name the base of the API with --api")
        yield from (each for each in comments if isinstance(each, dict) and "id" in each)
        url = answer.links.get("next", {}).get("url")
        if not url:
            return
        if not url.startswith(f"{place.api}/"):  # the token belongs to the API alone
            raise _Refused(f"{place.api} names {echo(url)} as its next page, which is of another API. Name the base of "
                           "the API with --api")
    raise _Refused(f"{place.api} has more than {MOST_PAGES} pages of comments. Remove old ones")


def _answer(answer: httpx.Response, place: Place) -> object:
    """The answer of the service, as JSON.

    Raises:
        _Refused: the service refuses the request.
    """
    try:
        content = answer.json()
    except ValueError:
        content = None
    if answer.is_success and content is not None:
        return content
    words = content if isinstance(content, dict) else {}
    message = next(filter(None, map(words.get, ("message", "error_description", "error"))), "")
    details = words.get("errors")
    for each in details if isinstance(details, list) else []:
        message = f"{message}; {each.get('message') or each.get('field')}" if isinstance(each, dict) else message
    said = f" ({echo(str(message)[:SHOWN])})" if message else ""
    request = f"{answer.request.method} {answer.request.url.path}"
    status = 429 if "rate limit" in str(message).lower() else answer.status_code
    moved = "the repository or the API has moved. Correct --repository or --api"
    reasons = {
        **dict.fromkeys((301, 302, 307, 308), moved),
        401: "the token is not valid",
        403: f"the token may not do this. It needs {place.service.permission}, which no job of a fork has",
        404: f"there is no such {place.service.request}, commit or repository, or the token may not see it",
        422: "the service refuses the content",
        429: "too many requests. Run the command again later",
    }
    unknown = "the answer is no JSON. Name the base of the API with --api"
    failed = "the service has failed. Run the command again later" if answer.is_server_error else "the service refuses"
    reason = reasons.get(status, unknown if answer.is_success else failed)
    raise _Refused(f"{request}: HTTP {answer.status_code}{said}: {reason}")
