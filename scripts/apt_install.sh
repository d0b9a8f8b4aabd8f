#!/bin/sh
# Packages of the distribution: sh scripts/apt_install.sh NAME...
set -eu
if [ "$(id -u)" -eq 0 ]; then as_root=""; else as_root="sudo"; fi
# Try several times: a mirror may fail once, or another program may hold a lock. apt-get waits for the lock of dpkg, but
# fails at once if its lists are locked.
patient="-o Acquire::Retries=3 -o DPkg::Lock::Timeout=120"
tries=12
# shellcheck disable=SC2086
until $as_root apt-get update -q $patient; do
    tries=$((tries - 1))
    if [ "$tries" -eq 0 ]; then exit 1; fi
    sleep 10
done
# shellcheck disable=SC2086
$as_root apt-get install -q -y --no-install-recommends $patient "$@"
