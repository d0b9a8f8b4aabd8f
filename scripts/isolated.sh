#!/bin/sh
# isolated.sh COMMAND …: runs it in network and process namespaces of its own. Nothing that it starts can be reached from
# elsewhere, and nothing survives it. Ray listens on every interface; the tests of load hosts run it here.
set -eu
[ "$(id -u)" = 0 ] && user="" || user="--user --map-root-user"
# shellcheck disable=SC2086  # options, or nothing
exec unshare $user --net --pid --mount-proc --fork --kill-child sh -c 'ip link set lo up; "$@"; exit $?' sh "$@"
