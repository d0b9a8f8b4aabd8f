"""nginx as a router of requests."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from urllib.parse import urlsplit

from pytest_llmperf.engines.routers.adapter import SWITCHES, RouterAdapter, RouterPlacement, switched_on
from pytest_llmperf.model.deployment import Router, router_of

CONFIGURATION = "nginx.conf"
#: Policy → the directive of an `upstream` block.
DIRECTIVES = {"round_robin": "", "least_conn": "least_conn;", "random": "random;",
              "power_of_two": "random two least_conn;", "consistent_hash": "hash $http_x_session_id consistent;"}
_CONNECTIONS = 16_384
_IDLE_CONNECTIONS = 1_024  # kept open to the replicas
_TEXT = """\
daemon off; master_process off;  # a master would write its title over the environment, which marks our processes
worker_processes 1;  # several workers would each count in turn for themselves
pid {folder}/nginx.pid;
error_log stderr warn;
events {{ worker_connections {connections}; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  client_max_body_size 0; client_body_buffer_size 16m;
  keepalive_requests 1000000; keepalive_timeout 3600s;
  upstream replicas {{
    {directive}
{servers}
    keepalive {idle}; keepalive_requests 1000000; keepalive_timeout 3600s;
  }}
  server {{
    listen 127.0.0.1:{port} backlog={connections};
    location / {{
      proxy_pass http://replicas;
      proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host $host;
      proxy_buffering off; proxy_request_buffering on; proxy_read_timeout 3600s;
      proxy_next_upstream {retried};
    }}
  }}
}}
"""


class Nginx(RouterAdapter):
    """Passes bytes on and reads no prompt."""

    api, name, program = 1, "nginx", "nginx"
    policies = MappingProxyType({
        "round_robin": "round_robin", "least_conn": "least_loaded", "random": "random",
        "power_of_two": "power_of_two", "consistent_hash": "consistent_hash",
    })
    session_policies = frozenset({"consistent_hash"})

    def refusal(self, router: Router) -> str | None:
        if unknown := router.values.keys() - set(SWITCHES):
            return f"nginx has no option {min(unknown)}; its options are {' and '.join(SWITCHES)}. Correct the option."
        return super().refusal(router)

    def arguments(self, router: Router, placement: RouterPlacement) -> list[str]:  # noqa: ARG002
        return ["-c", str(placement.folder / CONFIGURATION), "-p", str(placement.folder), "-e", "stderr"]

    def files(self, router: Router, placement: RouterPlacement) -> Mapping[str, str]:
        failures = "" if router.values.get("circuit_breaker") else " max_fails=0"
        servers = "\n".join(f"    server {urlsplit(worker).netloc}{failures};" for worker in placement.workers)
        retried = "error timeout http_502 http_503 non_idempotent" if router.values.get("retries") else "off"
        return {CONFIGURATION: _TEXT.format(
            folder=placement.folder, connections=_CONNECTIONS, idle=_IDLE_CONNECTIONS, servers=servers,
            directive=DIRECTIVES[router.policy], port=placement.port, retried=retried)}


NGINX = Nginx()


def nginx(*, policy: str = "round_robin", retries: bool = False, circuit_breaker: bool = False) -> Router:
    """Describe nginx in front of the replicas, with one worker process and without buffering.

    Args:
        policy: "round_robin", "least_conn", "random", "power_of_two" or "consistent_hash" (of the header
            X-Session-Id).
        retries: whether nginx sends a failed request to another replica. A retry hides an error as latency.
        circuit_breaker: whether nginx leaves out a replica for 10 s after a failure.

    Raises:
        SpecError: an option is no boolean.
    """
    return router_of("nginx", policy, switched_on(retries=retries, circuit_breaker=circuit_breaker))
