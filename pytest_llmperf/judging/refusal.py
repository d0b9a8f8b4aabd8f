"""Judges whether an engine refused to start for the reason that a test names.

Only the engine's own error messages count. A log also holds the flags of the start, the text of usage errors and the
values that a validation error dumps; these name every flag of the test, whatever ended the engine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from pytest_llmperf.errors import Evidence
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.causes.limits import EngineStarted, RefusedOtherwise
from pytest_llmperf.results.check import CheckResult, Facts

SHOWN_MESSAGES = 2
SHOWN_LINES = 5
#: Lines of one error message; pydantic lists several fields.
MESSAGE_LINES = 8
# "(EngineCore pid=81) ERROR 11-26 07:31:02 [core.py:1077] text" of vLLM, "[2026-11-26 07:31:02 TP0] text" of SGLang.
_PREFIX = re.compile(
    r"(?:\(\w[^()]*\) ?)?(?:(?P<level>[A-Z]+) \d\d-\d\d [\d:.]+ \[[^\]]*\] ?|\[\d{4}-\d\d-\d\d [^\]]*\] ?)?(?P<text>.*)"
)
# "ValueError: …", "pydantic_core._pydantic_core.ValidationError: …"; "vllm serve: error: …" of argparse.
_MESSAGE = re.compile(r"(?:[A-Za-z_][\w.]*(?:Error|Exception|Exit|Refused)\b(?::|$)|[\w .-]+: error: )")
_DUMPED_VALUES = re.compile(r"\[type=.*|input_value=.*")
_NO_CONTINUATION = (
    "Traceback ", "During handling of", "The above exception", "    For further information visit", "usage: ",
)  # fmt: skip
_FLAG = re.compile(r"-{0,2}[A-Za-z][\w-]*")


def error_messages(log: Sequence[str]) -> list[str]:
    """The error messages of an engine's log, each as one line, without repetitions.

    A message is the last line of a traceback, or argparse's error, with the lines that continue the message.
    """
    return list(dict.fromkeys(_messages(log)))


def _messages(log: Sequence[str]) -> Iterator[str]:
    lines: list[str] = []
    level: str | None = None
    for line in log:
        match = _PREFIX.fullmatch(line)
        text, own_level = (match["text"], match["level"]) if match else (line, None)
        begins = _MESSAGE.match(text) is not None and own_level in (None, "ERROR", "CRITICAL")
        continues = own_level == level and len(lines) < MESSAGE_LINES and not text.startswith(_NO_CONTINUATION)
        if lines and (begins or not continues or not text.strip()):
            yield _joined(lines)
            lines = []
        if begins or lines:
            lines.append(text)
            level = own_level
    if lines:
        yield _joined(lines)


def _joined(lines: Sequence[str]) -> str:
    return " ".join(" ".join(_DUMPED_VALUES.sub("", line).split()) for line in lines).strip()


def names_reason(message: str, reason: str) -> bool:
    """Whether an error message names a flag, in any spelling, or contains a phrase.

    >>> names_reason("ValueError: decrease --max-model-len", "max_model_len")
    True
    >>> names_reason("ValueError: max_model_length is unknown", "max_model_len")
    False
    """
    if _FLAG.fullmatch(reason):
        flag = re.escape(reason.lstrip("-").replace("-", "_").lower())
        words = message.lower().replace("-", "_").replace("__", " ")
        return re.search(rf"(?<!\w){flag}(?!\w)", words) is not None
    return " ".join(reason.lower().split()) in message.lower()


def judge_refusal(reason: str, evidence: Evidence | None, prediction: str | None) -> CheckResult:
    """PASS only if the engine was started, ended before it was ready, and its own error message names the reason.

    Args:
        reason: a flag of the engine, or a phrase of its error message.
        evidence: of the engine that ended before it was ready; None if the engine became ready.
        prediction: why the engine should refuse by the memory arithmetic of this package. It never decides.
    """
    subject = f"refuses {reason}"
    facts = Facts(refused_for=reason)
    if prediction is not None:
        facts["prediction"] = prediction
    if evidence is None:
        return CheckResult(subject, Verdict.FAIL, cause=EngineStarted(reason), facts=facts)
    messages = error_messages(evidence.log_tail)
    naming = [message for message in messages if names_reason(message, reason)]
    facts["ending"], facts["ended_after_s"] = evidence.ending, evidence.elapsed_s
    if naming:
        facts["log_lines"] = naming[:1]
        return CheckResult(subject, Verdict.PASS, facts=facts)
    written = [line for line in evidence.log_tail if line.strip()]
    cause = RefusedOtherwise(reason, evidence.ending, evidence.elapsed_s,
                             messages[-SHOWN_MESSAGES:] or written[-SHOWN_LINES:], evidence.log_path)
    return CheckResult(subject, Verdict.ERROR, cause=cause, facts=facts)
