"""Nothing that is written down holds a secret, in whatever spelling."""

import base64
from itertools import pairwise
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmperf.process.secrets import StreamMask, is_secret_name, mask, mask_argv, secret_arguments

CANARY = "cAn4ry+/=s3cret&value"


@pytest.mark.parametrize("name", [
    "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "OPENAI_API_KEY", "VLLM_API_KEY", "AWS_SECRET_ACCESS_KEY",
    "AWS_ACCESS_KEY_ID", "PGPASSWORD",
    "db_password", "MYSQL_PWD", "APIKEY", "GOOGLE_APPLICATION_CREDENTIALS", "API_KEYS", "GITHUB_PAT",
])
def test_names_that_look_secret(name):
    assert is_secret_name(name)


@pytest.mark.parametrize("name", [
    "TOKENIZERS_PARALLELISM", "PWD", "OLDPWD", "MAX_TOKENS", "PATH", "KEYBOARD", "HOME", "CUDA_VISIBLE_DEVICES",
    "XDG_SESSION_PATH", "LLMPERF_TAG",
])
def test_names_that_do_not(name):
    assert not is_secret_name(name)


@pytest.mark.parametrize("spelling", [
    CANARY,
    quote(CANARY, safe=""),
    base64.b64encode(CANARY.encode()).decode(),
    base64.urlsafe_b64encode(CANARY.encode()).decode(),
    base64.b64encode(f"u:{CANARY}".encode()).decode(),
    base64.b64encode(f"us:{CANARY}".encode()).decode(),
    base64.b64encode(f"user{CANARY}more".encode()).decode(),
])
def test_values_are_masked_in_every_spelling(spelling):
    masked = mask(f"before {spelling} after", {"MY_TOKEN": CANARY})
    assert spelling not in masked
    assert spelling[4:-8] not in masked
    assert "***" in masked
    assert masked.startswith("before ")
    assert masked.endswith(" after")


def test_short_and_harmless_values_stay():
    assert mask("true 1 /home", {"A_TOKEN": "true", "B_KEY": "1", "HOME": "/home"}) == "true 1 /home"


@pytest.mark.parametrize(("text", "hidden"), [
    ("https://user:pa55word@host/x", "pa55word"),
    ("Authorization: Bearer abc.def-123", "abc.def-123"),
    ("authorization: Basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
    ("Authorization: abcdef1234", "abcdef1234"),
    ("{'authorization': 'Bearer zzz111'}", "zzz111"),
    ("vllm serve m --api-key k3y", "k3y"),
    ("vllm serve m --api-key=k3y", "k3y"),
    ("sglang --admin-api-key 'two words'", "two words"),
    ("non-default args: {'api_key': ['k3yk3y'], 'port': 1}", "k3yk3y"),
    ("X-API-Key: 0123456789", "0123456789"),
    ("found hf_abcdefghijklmnopqrst", "hf_abcdefghijklmnopqrst"),
    ("export OPENAI_API_KEY=abc123", "abc123"),
])
def test_secrets_by_their_shape(text, hidden):
    masked = mask(text)
    assert hidden not in masked
    assert "***" in masked


@pytest.mark.parametrize("text", [
    "--max-num-batched-tokens 1024 --tokenizer gpt2 --ssl-keyfile a.pem", "http://127.0.0.1:8000/v1/models",
    "tokens: 12, key: value", "mail me@example.org", "--api-key --port 1",
])
def test_harmless_text_stays(text):
    assert mask(text) == text


def test_a_masked_command_line_still_reads_like_one():
    argv = ("vllm", "serve", "my model", "--api-key", "k", "--hf-token=abc", "--port", "1", CANARY)
    shown = mask_argv(argv, {"S_KEY": CANARY})
    assert shown == "vllm serve 'my model' --api-key *** --hf-token=*** --port 1 '***'"


@given(data=st.data())
def test_a_stream_is_masked_wherever_it_is_cut(data):
    secrets = data.draw(st.lists(st.text("ab", min_size=6, max_size=9), min_size=1, max_size=3))
    pieces = data.draw(st.lists(st.sampled_from([*secrets, "a", "b", "-", "aab"]), max_size=12))
    whole = "".join(pieces).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    stream = StreamMask(secrets)
    bounds = [0, *cuts, len(whole)]
    parts = [whole[start:end] for start, end in pairwise(bounds)]
    masked = b"".join(stream.feed(part) for part in parts) + stream.flush()
    assert not any(secret.encode() in masked for secret in secrets)


def test_only_what_may_become_a_secret_is_held_back():
    stream = StreamMask(["secret-value"])
    assert stream.feed(b"a line\n") == b"a line\n"
    assert stream.feed(b"it is secr") == b"it is "
    assert stream.feed(b"et-value!\n") == b"***!\n"
    assert stream.feed(b"the se") + stream.flush() == b"the se"


def test_a_secret_that_begins_with_another_one_is_masked_whole():
    stream = StreamMask(["secret", "secret-longer"])
    assert stream.feed(b"a secret") == b"a "
    assert stream.feed(b"-longer b") == b"*** b"
    assert stream.feed(b"a secret") + stream.flush() == b"a ***"


def test_without_secrets_a_stream_passes():
    assert StreamMask([]).feed(b"anything") == b"anything"


@pytest.mark.parametrize(
    ("argv", "found"),
    [
        (["serve", "m", "--api-key", "sk-abcdef"], ["sk-abcdef"]),
        (["--api-key=sk-abcdef", "--hf-token", "hf_abcdef"], ["sk-abcdef", "hf_abcdef"]),
        (["--api-key", "--port", "8000"], []),
        (["--max-tokens", "1000000", "--key", "short"], []),
    ],
)
def test_arguments_that_are_secrets(argv, found):
    assert secret_arguments(argv) == found
