"""nginx, HAProxy and Caddy in front of a gateway, in their usual configurations."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from support.ports import reserved_port
from support.processes import Process
from support.waiting import wait_until

__all__ = ["PROXIES", "USER", "proxied"]

PROXIES = ("nginx", "haproxy", "caddy")
USER = "mallory"
"""Whom each proxy names to the gateway, whatever a client says."""

_NGINX = """
daemon off;
error_log stderr;
pid {folder}/nginx.pid;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    map $http_upgrade $connection_upgrade {{
        default upgrade;
        '' close;
    }}
    upstream gateway {{
        server {gateway};
        keepalive 4;
    }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://gateway;
            proxy_http_version 1.1;
            proxy_set_header Host $host;
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection $connection_upgrade;
            proxy_set_header X-Forwarded-User {user};
            proxy_request_buffering off;
        }}
    }}
}}
"""

_HAPROXY = """
global
    log stdout format raw daemon
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    option http-keep-alive
    option abortonclose
frontend public
    bind 127.0.0.1:{port}
    http-request set-header X-Forwarded-User {user}
    default_backend gateway
backend gateway
    http-reuse always
    server one {gateway}
"""

_CADDY = """
{{
    admin off
    auto_https off
    storage file_system {folder}
}}
http://:{port} {{
    bind 127.0.0.1
    reverse_proxy {gateway} {{
        header_up X-Forwarded-User {user}
    }}
}}
"""


@contextmanager
def proxied(name: str, gateway: str, folder: Path) -> Iterator[str]:
    """Runs a proxy before the gateway at `host:port`. Yields the `host:port` of the proxy."""
    path = folder / f"{name}.conf"
    with reserved_port() as port:
        template = {"nginx": _NGINX, "haproxy": _HAPROXY, "caddy": _CADDY}[name]
        path.write_text(template.format(folder=folder, gateway=gateway, port=port, user=USER), "utf-8")
        command = {
            "nginx": ("nginx", "-e", "stderr", "-c", str(path), "-p", str(folder)),
            "haproxy": ("haproxy", "-db", "-f", str(path)),
            "caddy": ("caddy", "run", "--adapter", "caddyfile", "--config", str(path)),
        }[name]
        program = shutil.which(command[0], path="/usr/sbin:/usr/bin:/usr/local/bin")
        assert program, f"needs {name}"
        environment = {"HOME": str(folder), "PATH": "/usr/sbin:/usr/bin"}
        process = Process([program, *command[1:]], environment, folder / f"{name}.log")
        try:
            wait_until(lambda: _answers(port) or not process.runs, 30, what=f"{name} answers")
            assert process.runs, process.log
            yield f"127.0.0.1:{port}"
        finally:
            process.stop(20)


def _answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/livez").status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False
