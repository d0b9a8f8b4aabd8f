#!/bin/sh
# Chromium for the browser tests, from the distribution's packages; nothing to do where one is there.
set -eu
for name in chromium chromium-browser google-chrome; do
    if command -v "$name" > /dev/null; then exit 0; fi
done
if [ "$(id -u)" -eq 0 ]; then as_root=""; else as_root="sudo"; fi
# A mirror that fails once, a package manager that somebody else has locked: no reason to give up.
patient="-o Acquire::Retries=3 -o DPkg::Lock::Timeout=120"
# shellcheck disable=SC2086
$as_root apt-get update -q $patient
# shellcheck disable=SC2086
$as_root apt-get install -q -y --no-install-recommends $patient chromium fonts-dejavu-core
