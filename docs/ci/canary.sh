#!/bin/sh
# Judges a canary against the stable service, for a rollout controller. Copy to ci/canary.sh of your project.
#   CANARY, STABLE  addresses of the two services, for the test
#   TEST            what pytest runs (default: canary/)
#   VENV            environment of pytest-llmperf (default: .venv-llmperf)
#   UNDECIDED       exit code of INCONCLUSIVE (default: 11; 0 lets the rollout go on)
#   LINE            file for the verdict in one line (default: /dev/termination-log, which `kubectl describe pod` shows)
# The last printed line is the verdict. Exit code: 0 PASS, 1 FAIL, 10 ERROR, 11 INCONCLUSIVE.
set -eu
: "${CANARY:?set CANARY to the address of the canary}" "${STABLE:?set STABLE to the address of the stable service}"
bin=${VENV:-.venv-llmperf}/bin
code=0
"$bin/pytest" "${TEST:-canary/}" || code=$?
line=$("$bin/llmperf" show | sed -n 1p) || true
echo "${line:=no run was stored, exit code $code of pytest}"
echo "$line" > "${LINE:-/dev/termination-log}" || true
test "$code" -ne 11 || code=${UNDECIDED:-11}
exit "$code"
