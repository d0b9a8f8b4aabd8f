"""Keys and headers of an endpoint: named in the spec, read when it is measured, shown nowhere."""

import httpx
import pytest

from pytest_llmperf.engines.control.identity import check_identity
from pytest_llmperf.engines.endpoint.credentials import header_values, sent_secrets
from pytest_llmperf.engines.endpoint.spec import endpoint
from pytest_llmperf.errors import SpecError, WrongServer

KEY = "canary-key-91e7"


def build(**arguments):
    return endpoint("http://h:1", model="m", **arguments)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"api_key": KEY}, r'must not contain a key.*write api_key_env="VARIABLE"'),
        ({"headers": {"X-Key": KEY}}, r"must not contain a key.*write headers_env="),
        ({"api_key_env": KEY}, "is no name of an environment variable in upper case"),
        ({"headers_env": {"X-Key": KEY}}, "X-Key.*is no name of an environment variable"),
        ({"headers_env": {f"{KEY}:": "A"}}, "is no name of an HTTP header"),
        ({"headers_env": {"Host": "A"}}, "the load generator sets this header"),
        ({"headers_env": {"authorization": "A"}, "api_key_env": "B"}, "this header is given twice"),
        ({"headers_env": KEY}, r'write {"HEADER": "VARIABLE"}'),
        ({"api_key_env": "A", "api_key_file": "b"}, "by a variable or by a file"),
        ({"api_key_file": ""}, "the file is a path"),
    ],
)
def test_invalid_source_of_a_key_is_refused_and_not_repeated(arguments, complaint):
    with pytest.raises(SpecError, match=complaint) as caught:
        build(**arguments)
    assert KEY not in str(caught.value)


def test_headers_are_read_from_variables_and_files(tmp_path):
    (tmp_path / "key").write_text(f"{KEY}\n")
    environ = {"TEAM": " blue ", "BASIC": "Basic abc", "KEY": KEY}
    spec = build(api_key_file="key", headers_env={"X-Team": "TEAM"})
    assert header_values(spec, tmp_path, environ) == (("Authorization", f"Bearer {KEY}"), ("X-Team", "blue"))
    assert header_values(build(api_key_env="KEY"), tmp_path, environ) == (("Authorization", f"Bearer {KEY}"),)
    basic = build(headers_env={"Authorization": "BASIC"})
    assert header_values(basic, tmp_path, environ) == (("Authorization", "Basic abc"),)


@pytest.mark.parametrize(
    ("arguments", "environ", "complaint"),
    [
        ({"api_key_env": "KEY"}, {}, r"variable KEY is not set.*Nothing was sent. Run `export KEY=…`"),
        ({"api_key_env": "KEY"}, {"KEY": " "}, "variable KEY is empty or holds characters"),
        ({"api_key_env": "KEY"}, {"KEY": f"{KEY}\r\nX: y"}, "variable KEY is empty or holds characters"),
        ({"api_key_file": "none"}, {}, "file none cannot be read: No such file or directory. Nothing was sent"),
    ],
)
def test_missing_or_unsendable_key_is_an_error_that_names_the_source(tmp_path, arguments, environ, complaint):
    with pytest.raises(SpecError, match=complaint) as caught:
        header_values(build(**arguments), tmp_path, environ)
    assert KEY not in str(caught.value)


def test_spec_with_a_key_shows_the_source_alone():
    assert "header.Authorization=key-env:KEY" in repr(build(api_key_env="KEY"))


def test_refused_key_is_an_error_that_names_the_variable(make_server, fake_engine):
    fake_engine.answers["/v1/models"] = httpx.Response(403)
    headers = (("Authorization", f"Bearer {KEY}"),)
    with pytest.raises(WrongServer, match=r"answered 403. The request had the headers Authorization \(key-env:KEY\)"):
        check_identity(make_server(build(api_key_env="KEY"), headers=headers))


def test_masked_texts_contain_the_key_with_and_without_scheme():
    assert sent_secrets((("Authorization", f"Bearer {KEY}"), ("X-Short", "a1"))) == (f"Bearer {KEY}", KEY)
