"""nginx or HAProxy in front of replicas, with TLS, a key and round robin: `proxy.py PROXY IDENTITY REPLICA_PORT…`.

Prints its port on 127.0.0.1 and becomes the proxy. PROXY_KEY has the key that each request must have. The folder of
IDENTITY, a file of certificate and private key, gets the configuration. `scripts/install_test_packages.sh` installs
both proxies.
"""

import os
import shutil
import socket
import sys
from pathlib import Path

NGINX = """
daemon off; master_process off; pid {folder}/pid; error_log {folder}/log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    upstream replicas {{ {servers} keepalive 32; }}
    server {{
        listen 127.0.0.1:{port} ssl; ssl_certificate {identity}; ssl_certificate_key {identity};
        location / {{
            if ($http_authorization != "Bearer {key}") {{ return 401; }}
            proxy_pass http://replicas; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
            add_header X-Replica $upstream_addr always;
        }}
    }}
}}
"""
HAPROXY = """
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    retries 1
    option redispatch 1
frontend service
    bind 127.0.0.1:{port} ssl crt {identity}
    http-request deny deny_status 401 unless {{ req.hdr(Authorization) -m str "Bearer {key}" }}
    default_backend replicas
backend replicas
    balance roundrobin
{servers}
"""
CONFIGURATIONS = {"nginx": NGINX, "haproxy": HAPROXY}
SERVERS = {"nginx": "server 127.0.0.1:{port} max_fails=0;\n", "haproxy": "    server at{port} 127.0.0.1:{port}\n"}


def main(proxy, identity, *replica_ports):
    program = shutil.which(proxy, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if program is None:
        sys.exit(f"{proxy} is missing. Run: sh scripts/install_test_packages.sh")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    folder = Path(identity).parent
    servers = "".join(SERVERS[proxy].format(port=replica_port) for replica_port in replica_ports)
    file = folder / f"{proxy}.conf"
    file.write_text(CONFIGURATIONS[proxy].format(
        servers=servers, port=port, folder=folder, identity=identity, key=os.environ["PROXY_KEY"]))
    options = ["-p", f"{folder}/", "-c", str(file)] if proxy == "nginx" else ["-db", "-f", str(file)]
    print(port, flush=True)
    os.execv(program, [program, *options])


if __name__ == "__main__":
    main(*sys.argv[1:])
