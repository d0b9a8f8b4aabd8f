#!/bin/sh
# Chromium for the browser tests, from the distribution's packages; nothing to do where one is there.
set -eu
for name in chromium chromium-browser google-chrome; do
    if command -v "$name" > /dev/null; then exit 0; fi
done
if [ "$(id -u)" -eq 0 ]; then as_root=""; else as_root="sudo"; fi
$as_root apt-get update -q
$as_root apt-get install -q -y --no-install-recommends chromium fonts-dejavu-core
