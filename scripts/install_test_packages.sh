#!/bin/sh
# nginx and HAProxy for the tests of services, Groovy for the Jenkinsfile, from the distribution's packages.
set -eu
PATH="$PATH:/usr/sbin:/sbin"
missing=""
command -v nginx > /dev/null || missing="nginx-light"
command -v haproxy > /dev/null || missing="$missing haproxy"
if [ ! -e /usr/share/java/groovy-all.jar ]; then missing="$missing groovy"; fi
command -v java > /dev/null || missing="$missing default-jre-headless"
if [ -z "$missing" ]; then exit 0; fi
if [ "$(id -u)" -eq 0 ]; then as_root=""; else as_root="sudo"; fi
# The packages start their servers at once, on every address of the machine. This file is how Debian prevents that.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' | $as_root tee "$policy" > /dev/null
    $as_root chmod 755 "$policy"
    # shellcheck disable=SC2064
    trap "$as_root rm -f $policy" EXIT
fi
# shellcheck disable=SC2086
sh "$(dirname "$0")/apt_install.sh" $missing
