"""Why an engine ended before it was ready, from its log. The logs are excerpts of vLLM 0.32.0 and SGLang."""

from dataclasses import replace

import pytest

from pytest_llmperf.errors import Evidence
from pytest_llmperf.judging.refusal import error_messages, judge_refusal, names_reason
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.causes.limits import EngineStarted, RefusedOtherwise
from pytest_llmperf.results.sentences import basis_text, reason_text

FLAGS = (
    "(APIServer pid=81) INFO 11-26 07:30:20 [api_utils.py:286] non-default args: {'max_model_len': 99999}",
    "(APIServer pid=81) WARNING 11-26 07:30:20 [arg_utils.py:1] ValueError: lower max_model_len if memory is short",
)
VALIDATION = (
    "Traceback (most recent call last):",
    '  File "arg_utils.py", line 1955, in create_model_config',
    '    raise ValueError(f"max_model_len {length}")',
    "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
    "  Value error, User-specified max_model_len (99999) is greater than the derived max_model_len "
    "[type=value_error, input_value=ArgsKwargs((), {'max_num_seqs': 8}), input_type=ArgsKwargs]",
    "    For further information visit https://errors.pydantic.dev/2.14/v/value_error",
)
CORE = (
    "(EngineCore pid=90) ERROR 11-26 07:31:02 [core.py:1077] Traceback (most recent call last):",
    "(EngineCore pid=90) ERROR 11-26 07:31:02 [core.py:1077] ValueError: To serve one request, 3.73 GiB KV cache is",
    "(EngineCore pid=90) ERROR 11-26 07:31:02 [core.py:1077] needed. Try decreasing `max_model_len`.",
    "(APIServer pid=81) INFO 11-26 07:31:03 [launcher.py:1] shutting down",
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
)
ARGPARSE = (
    "usage: vllm serve [-h] [--max-model-len MAX_MODEL_LEN] [--max-num-seqs MAX_NUM_SEQS]",
    "vllm serve: error: argument --max-model-len/-l: invalid value: 'many'",
)
OTHER = (*FLAGS, "Traceback (most recent call last):", "OSError: [Errno 28] No space left on device")


def evidence(*lines, ending="exit code 1"):
    return Evidence("vllm serve", ending, 7.9, lines, "servers/01-vllm-1/server.log")


def test_error_messages_are_the_ends_of_tracebacks_and_argparse_errors():
    assert error_messages([*FLAGS, *VALIDATION]) == [
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig Value error, "
        "User-specified max_model_len (99999) is greater than the derived max_model_len"
    ]
    assert error_messages(CORE) == [
        "ValueError: To serve one request, 3.73 GiB KV cache is needed. Try decreasing `max_model_len`.",
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
    ]
    assert error_messages(ARGPARSE) == ["vllm serve: error: argument --max-model-len/-l: invalid value: 'many'"]


def test_repeated_and_endless_messages_are_shortened():
    again = ["ValueError: max_num_seqs is too large", "", "ValueError: max_num_seqs is too large"]
    assert error_messages(again) == ["ValueError: max_num_seqs is too large"]
    (message,) = error_messages(["ValueError: a", *(f"line {n}" for n in range(100))])
    assert message == "ValueError: a line 0 line 1 line 2 line 3 line 4 line 5 line 6"


@pytest.mark.parametrize("reason", ["max_model_len", "max-model-len", "--max-model-len"])
@pytest.mark.parametrize("log", [VALIDATION, CORE, ARGPARSE])
def test_flag_in_an_error_message_is_a_quoted_pass(log, reason):
    result = judge_refusal(reason, evidence(*FLAGS, *log), None)
    assert (result.verdict, result.cause) == (Verdict.PASS, None)
    assert "exit code 1, 7.9 s after its start: “" in basis_text(result)
    assert "max" in result.numbers["log_lines"][0]


def test_phrase_of_the_error_message_is_a_pass():
    assert judge_refusal("KV cache is  needed", evidence(*CORE), None).verdict is Verdict.PASS


@pytest.mark.parametrize("log", [OTHER, FLAGS, ()])
def test_flag_that_only_the_rest_of_the_log_names_is_an_error(log):
    result = judge_refusal("max_model_len", evidence(*log), "needs 3.73 GiB, and 0.1 GiB are available at most")
    assert (result.verdict, type(result.cause)) == (Verdict.ERROR, RefusedOtherwise)


def test_other_reason_is_an_error_that_quotes_the_last_messages(message):
    message(reason_text(judge_refusal("max_model_len", evidence(*OTHER), None)))


def test_values_that_a_validation_error_dumps_name_no_reason():
    assert judge_refusal("max_num_seqs", evidence(*VALIDATION), None).verdict is Verdict.ERROR


def test_killed_engine_without_message_is_an_error_with_log_lines():
    result = judge_refusal("max_model_len", evidence("loading", "", ending="signal 9 (SIGKILL)"), None)
    assert result.verdict is Verdict.ERROR
    assert result.numbers["ending"] == "signal 9 (SIGKILL)"
    assert result.numbers["log_lines"] == ["loading"]
    empty = judge_refusal("max_model_len", replace(evidence(), log_path=None), None)
    assert reason_text(empty).endswith("Its log is empty")


@pytest.mark.parametrize("prediction", [None, "needs 3.73 GiB, and 0.1 GiB are available at most"])
def test_engine_that_starts_is_a_fail_whatever_was_predicted(prediction):
    result = judge_refusal("max_model_len", None, prediction)
    assert (result.verdict, type(result.cause)) == (Verdict.FAIL, EngineStarted)
    assert result.numbers.get("prediction") == prediction


@pytest.mark.parametrize(("message", "reason", "named"), [
    ("ValueError: decrease `max_model_len`", "max_model_len", True),
    ("error: argument --max-model-len: invalid", "max_model_len", True),
    ("ValueError: max_model_length is unknown", "max_model_len", False),
    ("ValueError: World size (2) is larger than the number of available GPUs (1)", "world size (2) is larger", True),
    ("ValueError: World size (2)", "world size (3)", False),
])
def test_flag_matches_whole_words_and_phrase_matches_text(message, reason, named):
    assert names_reason(message, reason) is named
