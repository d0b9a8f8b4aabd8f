#!/bin/sh
# Installs pytest-llmperf and judges suites/ on one kind of GPU. Copy to ci/llmperf.sh of your project.
# Arguments go to pytest; `KIND=h200 sh ci/llmperf.sh --emulate h200` tries the script without a GPU.
#   KIND    kind of GPU: h200, l40s, ... (docs/gpu_runners.md lists all)
#   ENGINE  environment of vLLM, such as /opt/engines/vllm (default: vllm on PATH)
#   WHEEL   what pip installs: path of a wheel, such as ci/pytest_llmperf-0.1.0-py3-none-any.whl, or a URL that ends in
#           #sha256=HASH. There is no default: on a package index anybody can register the name of a project.
#   LIMIT   time after which pytest is interrupted; it judges and stores what is measured until then
# Leaves .llmperf/junit.xml, .llmperf/runs/ and .llmperf/comment.md. Exit code: pytest's; 11 is INCONCLUSIVE.
set -eu
: "${KIND:?set KIND to the kind of GPU, such as h200}"
case "${WHEEL:-}" in
    "") problem='is not set' ;;
    https://*#sha256=*) problem='' ;;
    *://*) problem="is $WHEEL, a URL without https or without #sha256=HASH" ;;
    *) problem=''; test -f "$WHEEL" || problem="is $WHEEL, and there is no such file" ;;
esac
if test -n "$problem"; then
    echo "WHEEL $problem. Set WHEEL to the path of a pytest-llmperf wheel, or to https://HOST/NAME.whl#sha256=HASH." >&2
    exit 2
fi
venv=${VENV:-.venv-llmperf}
test -x "$venv/bin/python" || "${PYTHON:-python3}" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$WHEEL"
mkdir -p .llmperf
rm -f .llmperf/junit.xml  # of an earlier run
code=0
timeout --foreground --signal=INT --kill-after=5m "${LIMIT:-320m}" \
    "$venv/bin/pytest" -m "$KIND" suites/ --junitxml=.llmperf/junit.xml -rs \
    ${ENGINE:+--llmperf-engine "vllm=$ENGINE"} "$@" || code=$?
"$venv/bin/llmperf" comment .llmperf/junit.xml > .llmperf/comment.md ||
    echo "llmperf on $KIND: exit code $code, and no results" > .llmperf/comment.md
exit "$code"
