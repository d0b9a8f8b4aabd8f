#!/bin/sh
# Chromium for the browser tests, from the distribution's packages; nothing to do where one is there.
set -eu
for name in chromium chromium-browser google-chrome; do
    if command -v "$name" > /dev/null; then exit 0; fi
done
sh "$(dirname "$0")/apt_install.sh" chromium fonts-dejavu-core
