"""Control requests to one server: served models, profiler, sleep."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pytest_llmperf.engines.control import lazy_httpx as httpx
from pytest_llmperf.engines.control.contact import Contact
from pytest_llmperf.engines.control.json_answers import json_list
from pytest_llmperf.engines.control.reader import ServerReader
from pytest_llmperf.engines.process.unit import Unit
from pytest_llmperf.errors import EngineError, WrongServer
from pytest_llmperf.masking import mask
from pytest_llmperf.model.engine import Endpoint

UNAUTHORIZED = (401, 403)
MODELS = "/v1/models"
PROFILER_TIMEOUT_S = 120.0  # the server writes the trace before its answer


class ControlApi:
    """Asks a server. An answer that does not come, or refuses the request, becomes an EngineError or WrongServer.

    Args:
        reader: routes and bodies of this kind of server.
        contact: address and credentials of the server.
        unit: processes of the server.
        client: sends the requests.

    Attributes:
        asleep: whether the GPU memory is released, so that no request may be sent.
    """

    def __init__(self, reader: ServerReader, contact: Contact, unit: Unit, client: httpx.Client) -> None:
        self.reader = reader
        self.contact = contact
        self.unit = unit
        self.client = client
        self.asleep = False

    @contextmanager
    def answers_within(self, timeout_s: float) -> Iterator[None]:
        """Wait no longer than this for any answer to a control request, while the block runs."""
        usual = self.client.timeout
        self.client.timeout = min(usual.read or timeout_s, timeout_s)
        try:
            yield
        finally:
            self.client.timeout = usual

    @contextmanager
    def answering(self, what: str) -> Iterator[None]:
        """Raise EngineError, with the evidence, if the server is dead or does not answer while the block runs.

        Args:
            what: object of the question to the server, such as "its models".
        """
        try:
            yield
        except httpx.HTTPError as error:
            self.unit.check_dying()
            self.unit.hung = True
            raise EngineError(
                f"The {self.unit.spec.engine} server hangs: asked for {what}, it did not answer "
                f"({type(error).__name__}: {error}). Read the end of its log.",
                self.unit.evidence,
            ) from error

    def check_responsive(self, timeout_s: float) -> None:
        """Raise EngineError if the server runs and yet answers nothing within `timeout_s`."""
        with self.answering("its models"):
            self.client.get(self.contact.service.url(MODELS), timeout=timeout_s)

    def served_models(self) -> list[str]:
        """Ids from /v1/models."""
        url = self.contact.service.url(MODELS)
        response = self.client.get(url)
        self.check_authorized(response)
        listed = json_list(response, "data")
        if listed is None and (target := response.headers.get("location")) is not None:
            raise EngineError(f"{url} answered {response.status_code} and redirects to {mask(target)}. Requests do not "
                              "follow redirects, which add time. Name the address of the service itself.")
        if listed is None:
            raise EngineError(f'{url} answered {response.status_code} without a list of models '
                              f'{{"data": [{{"id": "…"}}]}}: {self.shown(response)!r}. Correct the URL.')
        return [str(entry["id"]) for entry in listed if isinstance(entry, dict) and "id" in entry]

    def shown(self, response: httpx.Response) -> str:
        """The first 200 characters of an answer, with secrets masked: a server may repeat a key."""
        return mask(response.text, self.contact.secrets)[:200]

    def check_authorized(self, response: httpx.Response) -> None:
        """Raise WrongServer if the server refuses the key, or the lack of a key."""
        if response.status_code not in UNAUTHORIZED:
            return
        spec = self.unit.spec
        if isinstance(spec, Endpoint) and spec.secret_headers:
            names = ", ".join(f"{header} ({source})" for header, source in spec.secret_headers)
            remedy = f"The request had the headers {names}. Check that this key is valid and may use this model."
        elif isinstance(spec, Endpoint):
            remedy = ('The request had no API key. Write endpoint(…, api_key_env="VARIABLE"), or on the command '
                      "line --api-key-env VARIABLE.")
        else:
            remedy = "The request had no API key. Leave api_key and VLLM_API_KEY out of the spec."
        raise WrongServer(f"The server at {self.contact.url} refuses us: {response.request.url.path} answered "
                          f"{response.status_code}. {remedy} Nothing was measured.")

    def start_profiler(self, folder: Path, steps: int) -> None:
        """Begin a trace of every rank; the server was started with the flags of `EngineAdapter.profiler_flags`.

        Args:
            folder: absolute path of the folder for the traces.
            steps: number of engine steps after which the trace ends.

        Raises:
            EngineError: the profiler does not start.
        """
        body = self.reader.profiler_request(folder, steps)
        with self.answering("a trace"):
            response = self.client.post("/start_profile", json=body, timeout=PROFILER_TIMEOUT_S)
        if response.status_code != 200:
            raise EngineError(f"The profiler of {self.unit.spec.engine} does not start: /start_profile answered "
                              f"{response.status_code} {self.shown(response)!r}. Read the reason in its log.")

    def stop_profiler(self) -> None:
        """End the trace, unless the trace has ended by itself, which SGLang reports as an error. The files are complete
        when this returns.

        Raises:
            EngineError: the server does not answer.
        """
        with self.answering("the end of a trace"):
            self.client.post("/stop_profile", timeout=PROFILER_TIMEOUT_S)

    def sleep(self) -> None:
        """Release its GPU memory until `wake`.

        Raises:
            EngineError: the server does not fall asleep. It must not be measured any more.
        """
        self._move(self.reader.sleep, "the release of its memory")
        self.asleep = True

    def wake(self) -> None:
        """Take its GPU memory back.

        Raises:
            EngineError: the server does not wake up. It must not be measured any more.
        """
        self._move(self.reader.wake, "the return of its memory")
        self.asleep = False

    def _move(self, move: Callable[[httpx.Client], None], what: str) -> None:
        self.unit.check_alive()
        try:
            with self.answering(what):
                move(self.client)
        except EngineError as error:
            self.unit.hung = True
            error.evidence = error.evidence or self.unit.evidence
            raise
        except BaseException:
            self.unit.hung = True  # interrupted: nobody knows whether it sleeps
            raise
