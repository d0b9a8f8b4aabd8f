"""Nothing that is written down holds a secret, in whatever spelling."""

import base64
import json
from itertools import pairwise
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmperf.engines.spec import command_line, flags_of, secrets_of, vllm
from pytest_llmperf.masking import SHAPES, is_secret_name, mask, masked, masked_env, needles, secret_values
from pytest_llmperf.process.launch import Launch, mask_argv, secret_arguments
from pytest_llmperf.process.streammask import LONGEST_LINE_BYTES, StreamMask, TextMask

ROOT = Path(__file__).parents[3]
PEM_BEGIN = "-----BEGIN RSA PRIVATE " + "KEY-----"
PEM = f"""found
{PEM_BEGIN}
Proc-Type: 4,ENCRYPTED

MIIEpAIBAAKCAQEA0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKL
NOPQRSTUVWXYZ0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNO
Ab3+Q==
-----END RSA PRIVATE KEY-----
the server is up
"""
CANARY = "cAn4ry+/=s3cret&'vä\"lue\\x"


@pytest.mark.parametrize("name", [
    "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "OPENAI_API_KEY", "VLLM_API_KEY", "AWS_SECRET_ACCESS_KEY",
    "AWS_ACCESS_KEY_ID", "PGPASSWORD",
    "db_password", "MYSQL_PWD", "APIKEY", "GOOGLE_APPLICATION_CREDENTIALS", "API_KEYS", "GITHUB_PAT",
    "SMTP_PASS", "DB_PASS", "hf_token", "api-key", "ssl_keyfile_password", "aws_secret_access_key", "redis.password",
    "OPENAI_API_KEY2", "HF_TOKENS", "api_key2", "BASIC_AUTH", "SESSION_COOKIE", "SLACK_WEBHOOK_URL", "webhook_url",
])
def test_secret_variable_names_are_recognised(name):
    assert is_secret_name(name)


@pytest.mark.parametrize("name", [
    "TOKENIZERS_PARALLELISM", "PWD", "OLDPWD", "PATH", "KEYBOARD", "HOME", "CUDA_VISIBLE_DEVICES",
    "XDG_SESSION_PATH", "LLMPERF_TAG", "BYPASS", "pass_config", "max_tokens", "tokenizer", "prompt_tokens", "tokens",
    "num_speculative_tokens", "speculative_token_tree", "long_prefill_token_threshold", "return_tokens_as_token_ids",
    "ssl_keyfile", "eos_token_id", "max_num_batched_token",
])
def test_harmless_variable_names_are_not_secret(name):
    assert not is_secret_name(name)


@pytest.mark.parametrize("spelling", [
    CANARY,
    quote(CANARY, safe=""),
    json.dumps(CANARY)[1:-1],
    json.dumps(CANARY, ensure_ascii=False)[1:-1],
    repr(CANARY)[1:-1],
    base64.b64encode(CANARY.encode()).decode(),
    base64.urlsafe_b64encode(CANARY.encode()).decode(),
    base64.b64encode(f"u:{CANARY}".encode()).decode(),
    base64.b64encode(f"us:{CANARY}".encode()).decode(),
    base64.b64encode(f"user{CANARY}more".encode()).decode(),
])
def test_values_are_masked_in_every_spelling(spelling):
    masked = mask(f"before {spelling} after", [CANARY])
    assert spelling not in masked
    assert spelling[4:-8] not in masked
    assert "***" in masked
    assert masked.startswith("before ")
    assert masked.endswith(" after")


def test_short_or_harmless_values_are_not_masked():
    variables = {"A_TOKEN": "true", "B_KEY": "1", "HOME": "/home"}
    assert mask("true 1 /home", secret_values(variables)) == "true 1 /home"
    assert masked(variables) == variables


@pytest.mark.parametrize(("values", "shown"), [
    ({"api_key": ["aaaa", "bbbb"], "port": 1}, {"api_key": ["***", "***"], "port": 1}),
    ({"a": {"b": [{"password": "p"}]}}, {"a": {"b": [{"password": "***"}]}}),
    ({"credentials": {"user": "u", "n": 1234567}}, {"credentials": {"user": "***", "n": "***"}}),
    ({"config": '{"token": "t", "n": 1}'}, {"config": '{"token": "***", "n": 1}'}),
    ({"url": "redis://u:p@h/0", "header": "Bearer abcdefg"}, {"url": "redis://***@h/0", "header": "Bearer ***"}),
    ({"DB_PASSWORD": "abc", "PIN_PASSWORD": "1234"}, {"DB_PASSWORD": "***", "PIN_PASSWORD": "***"}),
])
def test_nested_secrets_are_masked_by_name(values, shown):
    assert masked(values) == shown


@pytest.mark.parametrize(("name", "value", "shown"), [
    ("db_password_rw", "s3cretvalue", "***"),
    ("Aws_Access_Key_Id", "s3cretvalue", "***"),
    ("openai_api_key2", "s3cretvalue", "***"),
    ("HF_TOKENS", "hf-1,hf-2", "***"),
    ("MAX_TOKENS", "131072", "131072"),
    ("some_max_tokens_per_expert", "163840", "163840"),
    ("NEW_TOKEN_RATIO", "0.7", "0.7"),
    ("extra", '{"token": "s3cretvalue", "speculative_token_tree": "[(0,)]"}',
     '{"token": "***", "speculative_token_tree": "[(0,)]"}'),
])
def test_variable_is_masked_if_any_word_of_name_is_secret(name, value, shown):
    assert masked_env({name: value}) == {name: shown}
    assert f"env.{name}={shown}" in str(vllm("m", env={name: value}))
    assert bool(secret_values({}, {name: value})) is (shown != value)


@pytest.mark.parametrize("values", [
    {"hf_token": True, "api_key": None, "HF_TOKEN": ""},
    {"SGLANG_INIT_NEW_TOKEN_RATIO": "0.7", "bucket_time_to_first_token": [0.1, 100]},
    {"speculative_config": {"method": "ngram", "num_speculative_tokens": 4, "speculative_token_tree": "[(0,)]"}},
    {"config": '{"max_tokens":1}', "tokens": "a b c", "tokenizer": "gpt2", "odd": "[1, 2", "ssl_keyfile": "/k.pem"},
])
def test_values_without_secret_are_not_masked(values):
    assert masked(values) == values


@pytest.mark.parametrize(("text", "hidden"), [
    ("https://user:pa55word@host/x", "pa55word"),
    ("postgres://user:pa55@word@host/x", "word@"),
    ("Authorization: Bearer abc.def-123", "abc.def-123"),
    ("authorization: Basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
    ("Authorization: abcdef1234", "abcdef1234"),
    ("{'authorization': 'Bearer zzz111'}", "zzz111"),
    ("vllm serve m --api-key k3y", "k3y"),
    ("vllm serve m --api-key=k3y", "k3y"),
    ("vllm serve m --api-key=-k3y", "k3y"),
    ("sglang --admin-api-key 'two words'", "two words"),
    ("non-default args: {'api_key': ['k3yk3y'], 'port': 1}", "k3yk3y"),
    ("X-API-Key: 0123456789", "0123456789"),
    ("found hf_abcdefghijklmnopqrst", "hf_abcdefghijklmnopqrst"),
    ("export OPENAI_API_KEY=abc123", "abc123"),
    ("export OPENAI_API_KEY2=abc123", "abc123"),
    ("Cloning https://s3cr3t-t0ken@github.com/o/r.git", "s3cr3t-t0ken"),
    ("connecting as scott:t1ger-x@db.example.org", "t1ger-x"),
    ("amqp scott:t1ger-x@localhost", "t1ger-x"),
    ("headers [(b'authorization', b'Basic dXNlcjpwYXNz')]", "dXNlcjpwYXNz"),
    ("Proxy-Authorization: Bearer abcdef1234", "abcdef1234"),
    ("with bearer 0123abcd-ef", "0123abcd-ef"),
    ("found hf_Ab3dEf9h", "hf_Ab3dEf9h"),
    ("key sk-proj-a1b2c3d4", "sk-proj-a1b2c3d4"),
    ("Cookie: session=0123; theme=dark", "session=0123"),
    ("Set-Cookie: id=a3fWa; HttpOnly", "a3fWa"),
    ("X-Auth-Token: 9f86d081884c", "9f86d081884c"),
    ("BASIC_AUTH=scott:tiger", "tiger"),
    ("SESSION_COOKIE=abc123def", "abc123def"),
    ("SLACK_WEBHOOK=https://example.org/T0/B0/xyz", "B0/xyz"),
    ("SLACK_WEBHOOK_URL=https://example.org/T0/B0/xyz", "B0/xyz"),
    ("{'webhook_url': 'https://example.org/T0/B0'}", "T0/B0"),
    ("posting to https://hooks.slack.com/services/T000/B000/XXXX", "B000/XXXX"),
    ("{'hf_token': 'short'}", "short"),
    ('"db_password": "two words"', "two words"),
    ("args: api_key=['server']", "server"),
    ("--api-key server --port 1", "server"),
    ("GET /v1?access_token=abc123def&x=1", "abc123def"),
    ("password: hunter2-x", "hunter2-x"),
    ("AKIAIOSFODNN7EXAMPLE", "AKIAIOSFODNN7EXAMPLE"),
    *((f"found {token}", token) for token in (
        "npm_0123456789abcdefABCDEF0123456789abcd", "glrt-0123456789abcdefABCD", "pypi-AgEIcHlwaS5vcmc0123456789",
        "dckr_pat_0123456789abcdefABCDEF", "hvs.CAESI0123456789abcdef", "xapp-1-A0123456789-abcdef",
    )),
    (rf"key: {PEM_BEGIN}\nMIIEpAIBAAKCAQEA0123456789\n-----END RSA PRIVATE KEY-----", "MIIEpAIBAAKCAQEA"),
])
def test_secret_shape_is_masked_in_text_and_in_any_two_chunks(text, hidden):
    masked = mask(text)
    assert hidden not in masked
    assert "***" in masked
    whole = f"{text}\n".encode()
    for cut in range(len(whole)):
        stream = StreamMask([], SHAPES)
        log = stream.feed(whole[:cut]) + stream.feed(whole[cut:]) + stream.flush()
        assert log.decode() == f"{masked}\n"


def test_multi_line_private_key_is_masked_in_any_two_chunks():
    bodies = ("MIIEp", "NOPQR", "Ab3+Q")
    assert not any(body in mask(PEM) for body in bodies)
    whole = PEM.encode()
    for cut in range(len(whole)):
        stream = StreamMask([], SHAPES)
        log = (stream.feed(whole[:cut]) + stream.feed(whole[cut:]) + stream.flush()).decode()
        assert not any(body in log for body in bodies)
        assert log.endswith("KEY-----\nthe server is up\n")


def test_log_after_mentioned_key_header_is_kept():
    text = f"Expecting: {PEM_BEGIN}\nthe engine started\n"
    stream = StreamMask([], SHAPES)
    assert b"the engine started\n" in stream.feed(text.encode()) + stream.flush()


@pytest.mark.parametrize("text", [
    "--max-num-batched-tokens 1024 --tokenizer gpt2 --ssl-keyfile a.pem", "http://127.0.0.1:8000/v1/models",
    "tokens: 12, key: value", "mail me@example.org", "--api-key --port 1",
    "--max-num-batched-token cannot be emulated. Did you mean --max-num-batched-tokens?",
    "engine.py: error: unrecognized arguments: --max-num-batched-token 1024",
    "--api-key is set by the launcher", "--hf-token needs a value", "a bearer token is refused",
    "vllm/vllm-openai:v0.26.0@sha256:0123456789abcdef", "max_num_batched_token=8192, long_prefill_token_threshold=0",
    "eos_token='<|end_of_text|>', pad_token=None, cls_token=AddedToken(content='x')", "MAX_TOKENS=131072 min_tokens=5",
    "TOKENIZERS_PARALLELISM=false", "hf_overrides={} hf_text_config_of_the_model", "task-force-on-kv-cache-offloading",
    "Avg generation throughput: 12.0 tokens/s", "Authentication is off", "use_auth=True",
])
def test_harmless_text_is_not_masked(text):
    assert mask(text) == text
    stream = StreamMask([], SHAPES)
    assert stream.feed(text.encode()) + stream.flush() == text.encode()


def test_no_line_of_the_documentation_is_masked():
    """Our messages use the same words."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    lines = [line for page in pages for line in page.read_text().splitlines()]
    assert len(lines) > 1000
    assert [line for line in lines if mask(line) != line] == []


@pytest.mark.parametrize("word", ["server", "tokens", "EMPTY", "Secret", "batched", "abc"])
def test_word_like_secret_cuts_no_text_and_is_masked_after_an_option(word):
    text = f"The {word} of --max-num-batched-tokens cannot be emulated."
    assert mask(text, [word]) == text
    assert TextMask(needles([word])).feed(f"{text}\n".encode()) == f"{text}\n".encode()
    assert masked({"api_key": word}) == {"api_key": "***"}
    assert mask(f"--api-key {word} {{'api_key': ['{word}']}}", [word]) == "--api-key *** {'api_key': ['***']}"


def test_secret_in_a_line_above_16_kib_is_masked_across_parts():
    secret = b"Authorization: Bearer abc.def-123"
    for ahead in range(LONGEST_LINE_BYTES - 40, LONGEST_LINE_BYTES + 40, 3):
        stream, line = StreamMask([], SHAPES), b"x " * (ahead // 2) + secret + b" x" * LONGEST_LINE_BYTES
        parts = [stream.feed(line[at:at + 1000]) for at in range(0, len(line), 1000)]
        assert sum(map(bool, parts)) > 1
        log = b"".join(parts) + stream.flush()
        assert log == line.replace(b"abc.def-123", b"***")


def test_masked_command_line_keeps_other_arguments():
    argv = ("vllm", "serve", "my model", "--api-key", "k", "--hf-token=abc", "--port", "1", CANARY)
    shown = mask_argv(argv, [CANARY])
    assert shown == "vllm serve 'my model' --api-key *** --hf-token=*** --port 1 ***"


def test_command_line_masks_all_values_of_key_and_nested_secrets():
    argv = ("serve", "--api-key", "k1", "k2", "--x", '{"a": {"password": "p"}}', '--y={"token": "t"}', "-m", "2")
    shown = """serve --api-key *** *** --x '{"a": {"password": "***"}}' '--y={"token": "***"}' -m 2"""
    assert mask_argv(argv) == shown


def test_log_mask_includes_secrets_of_environment_and_arguments(tmp_path):
    env = {"SMTP_PASS": CANARY, "EXTRA": '{"token": "nested-1"}', "HOME": "/home", "STORE": "redis://:in-a-url@h:1/0"}
    argv = ("serve", "--api-key", "first-key", "second-key", "--x", '{"a": {"password": "nested-2"}}')
    unit = Launch(argv, env, tmp_path, tmp_path).unit((1, 2))
    assert set(unit.needles) == set(needles([CANARY, "nested-1", "first-key", "second-key", "nested-2", "in-a-url"]))


@pytest.mark.parametrize(
    "value", ["-first-key", ["-first-key"], ["-first-key", "second-key"], ["second-key", "-first-key"], "-k"]
)
def test_a_secret_that_begins_like_an_option_is_hidden(tmp_path, value):
    """argparse would take such a secret for an option, and a reader of the command line would do so as well."""
    spec = vllm("m", api_key=value, port_of_rpc=1)
    launch = Launch(tuple(command_line(flags_of(spec))), {}, tmp_path, tmp_path, hidden=secrets_of(spec))
    assert launch.command.replace("=", " ") in {"--api-key *** --port-of-rpc 1", "--api-key *** *** --port-of-rpc 1"}
    assert value == "-k" or "-first-key" in launch.unit((1, 2)).needles


@given(data=st.data())
def test_stream_is_masked_regardless_of_chunk_boundaries(data):
    secrets = data.draw(st.lists(st.text("ab", min_size=6, max_size=9), min_size=1, max_size=3))
    pieces = data.draw(st.lists(st.sampled_from([*secrets, "a", "b", "-", "aab"]), max_size=12))
    whole = "".join(pieces).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    stream = TextMask(secrets)
    bounds = [0, *cuts, len(whole)]
    parts = [whole[start:end] for start, end in pairwise(bounds)]
    masked = b"".join(stream.feed(part) for part in parts) + stream.flush()
    assert not any(secret.encode() in masked for secret in secrets)


def test_stream_mask_holds_only_possible_start_of_secret():
    stream = TextMask(["secret-value"])
    assert stream.feed(b"a line\n") == b"a line\n"
    assert stream.feed(b"it is secr") == b"it is "
    assert stream.feed(b"et-value!\n") == b"***!\n"
    assert stream.feed(b"the se") + stream.flush() == b"the se"


def test_longest_matching_secret_is_masked():
    stream = TextMask(["secret", "secret-longer"])
    assert stream.feed(b"a secret") == b"a "
    assert stream.feed(b"-longer b") == b"*** b"
    assert stream.feed(b"a secret") + stream.flush() == b"a ***"


def test_without_secrets_a_stream_passes():
    assert TextMask([]).feed(b"anything") == b"anything"


def test_masked_stream_releases_whole_lines():
    stream = StreamMask([], SHAPES)
    assert stream.feed(b"a line\nand 40 %\r") == b"a line\nand 40 %\r"
    assert stream.feed(b"begun") == b""
    assert stream.feed(b" and ended\n") == b"begun and ended\n"


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["serve", "m", "--api-key", "sk-abcdef"], ["sk-abcdef"]),
        (["--api-key=sk-abcdef", "--hf-token", "hf_abcdef"], ["sk-abcdef", "hf_abcdef"]),
        (["--api-key", "sk-abcdef", "sk-ghijkl", "--port", "800000"], ["sk-abcdef", "sk-ghijkl"]),
        (["--x", '{"a": {"password": "nested"}}', '--y={"token": "deeper"}'], ["nested", "deeper"]),
        (["--api-key", "--port", "8000"], []),
        (["--max-tokens", "1000000", "--key", "short"], []),
    ],
)
def test_secret_arguments_are_found_in_command_line(argv, expected):
    assert secret_arguments(argv) == expected
