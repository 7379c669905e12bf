"""Security of clusters: TLS between all of their parts, and the hosts that pages of schedulers and workers answer to.

A folder with three PEM files holds the credentials of a cluster; every part accepts connections with them only:

    ca.pem    the certificate authority that all parts trust
    cert.pem  a certificate that it signed
    key.pem   the private key of the certificate, readable by its owner alone

`docs/security.md` shows how to make them with `openssl`, and the dask.yaml by which Dask's own commands find them.

Pages have no password, and a browser lets any site send requests to this machine: by a domain of the site that it
resolves to an address here (DNS rebinding, seen in `Host`), or over a websocket (seen in `Origin`). Dask accepts all.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import ssl
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import dask
from distributed import Scheduler, Security
from tornado.httputil import HTTPServerRequest
from tornado.routing import Matcher, Rule
from tornado.web import RequestHandler

from mgspmv.errors import MissingDependencyError, OptionError, escape_controls, hide_secrets, translating
from mgspmv.files import hold_folder

TEMPORARY = "temporary"
"""Value in place of a folder for certificates that last as long as the cluster that uses them."""
MODULE = "mgspmv.cluster.security"
"""Name of this module, which schedulers and workers preload."""
HOSTS = "mgspmv.dashboard-hosts"
"""Dask configuration key that passes the allowed hosts to workers started here."""
PRELOAD = "distributed.scheduler.preload"
"""Dask configuration key of the modules that schedulers load at startup."""
ORIGINS = "distributed.scheduler.dashboard.bokeh-application.allow_websocket_origin"
"""Dask configuration key by which users allow other hosts."""
WEB_PORTS = (80, 443)
"""Default ports of URLs without a port."""

_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[\w.*-]+)(?::(?P<port>[0-9]{1,5}))?", re.ASCII | re.IGNORECASE)


def read_certificates(folder: Path) -> dict[str, Any]:
    """Return the Dask settings that encrypt connections and pages, and require the certificates of a folder.

    Raises
    ------
    OptionError : a file is missing, damaged, expired or mismatched, or the key is encrypted or readable by others
    """
    paths = [folder / name for name in ("ca.pem", "cert.pem", "key.pem")]
    for path in paths:
        if not path.is_file():
            raise OptionError(
                f"{folder} has no {path.name}; a folder for tls= has ca.pem, cert.pem and key.pem; see docs/security.md"
            )
    if paths[-1].stat().st_mode & 0o077:
        raise OptionError(f"{paths[-1]} can be read by other users; run: chmod 600 {paths[-1]}")
    for path in paths:
        text = path.read_text(errors="replace")
        if "-----BEGIN " not in text:
            raise OptionError(f"{path} is not a PEM file")
        if path == paths[-1] and "ENCRYPTED" in text:
            raise OptionError(f"{path} is encrypted with a password, which cannot be entered here; decrypt it first")
    ca, cert, key = (str(path.resolve()) for path in paths)
    config: dict[str, Any] = {
        "distributed.comm.require-encryption": True,
        "distributed.comm.default-scheme": "tls",
        "distributed.comm.tls.ca-file": ca,
        "distributed.scheduler.dashboard.tls.ca-file": ca,
        "distributed.scheduler.dashboard.tls.cert": cert,
        "distributed.scheduler.dashboard.tls.key": key,
    }
    for role in ("client", "scheduler", "worker"):
        config |= {f"distributed.comm.tls.{role}.cert": cert, f"distributed.comm.tls.{role}.key": key}
    for server in ("scheduler", "worker"):
        loaded = dask.config.get(f"distributed.{server}.preload", [])
        config[f"distributed.{server}.preload"] = [*(name for name in loaded if name != MODULE), MODULE]
    try:
        with dask.config.set(config):
            security = Security()
            client = security.get_connection_args("client")["ssl_context"]
            _shake_hands(client, security.get_listen_args("scheduler")["ssl_context"])
    except ssl.SSLError as error:
        reason = getattr(error, "verify_message", "") or error.reason or str(error)
        raise OptionError(
            f"the certificates in {folder} are not valid: {str(reason).lower().replace('_', ' ')}; key.pem must be the "
            "key of cert.pem, and cert.pem must be signed by ca.pem and not expired"
        ) from error
    return config


def _write_temporary(folder: Path) -> None:
    """Write certificates made by Dask into an existing folder that only its owner may enter."""
    try:
        made = Security.temporary().get_tls_config_for_role("client")
    except ImportError as error:
        raise MissingDependencyError(
            "temporary certificates need the package cryptography, which is not installed; install mgspmv[tls], or "
            "create a folder of certificates"
        ) from error
    with translating(folder, "write"):
        for name, key in (("ca.pem", "ca_file"), ("cert.pem", "cert"), ("key.pem", "key")):
            with os.fdopen(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(made[key])


@contextmanager
def use_tls(where: str | Path | None) -> Iterator[None]:
    """Encrypt all clusters started or reached within the context, and require certificates for them.

    Parameters
    ----------
    where : a folder of certificates; `temporary` to create one for the context; None for no TLS
    """
    if where is None:
        yield
        return
    with ExitStack() as stack:
        folder = Path(where)
        if where == TEMPORARY:
            folder = stack.enter_context(hold_folder(Path(tempfile.gettempdir()), "mgspmv-tls-"))
            _write_temporary(folder)
        with dask.config.set(read_certificates(folder)):
            yield


def is_tls_required() -> bool:
    """Return whether parts of a cluster that are started now reject unencrypted connections."""
    return bool(dask.config.get("distributed.comm.require-encryption"))


def list_variables() -> dict[str, str]:
    """List the environment variables by which Dask's programs elsewhere find the certificates in use here."""
    keys = read_certificates(Path(dask.config.get("distributed.comm.tls.worker.cert")).parent)
    return {f"DASK_{key.replace('.', '__').replace('-', '_').upper()}": str(dask.config.get(key)) for key in keys}


async def dask_setup(server: Any) -> None:
    """Require a certificate for the pages and metrics of a scheduler or worker, and guard those of a scheduler; print
    warnings of workers in one line. Dask calls this at their start. Agents guard the pages of workers."""
    context = getattr(getattr(server, "http_server", None), "ssl_options", None)
    if isinstance(context, ssl.SSLContext):
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # temporary certificates made by Dask fail strict checks
    hosts = dask.config.get(HOSTS, None)
    if isinstance(server, Scheduler) and hosts:
        guard(server.http_application, hosts)
    if hosts and getattr(server, "nanny", None) is not None:  # in a separate process, which shares our terminal
        warnings.showwarning = partial(_show_warning, server.name)


def _show_warning(name: Any, message: Warning | str, *_: Any, **__: Any) -> None:
    """Print a warning of a worker in one line, without Python's file and source."""
    line = " ".join(str(message).split())
    print(f"warning: worker {name}: {escape_controls(hide_secrets(line))}", file=sys.stderr, flush=True)


def _shake_hands(client: ssl.SSLContext, server: ssl.SSLContext) -> None:
    """Do the TLS handshake between both sides in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True)]
    while sides:
        for side in list(sides):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            sides.remove(side)


class UnknownHosts(Matcher):
    """Matcher of requests by an unknown host name, or from a page of an unknown host.

    Addresses in `Host` are known: no site can have a browser send another one than that which it connects to.

    Parameters
    ----------
    hosts : known hosts as `HOST` or `HOST:PORT`; `*` in a name matches any text
    """

    def __init__(self, hosts: Iterable[str]) -> None:
        self._known = [parse_host(host) for host in hosts]

    def match(self, request: HTTPServerRequest) -> dict[str, Any] | None:
        """Return a dict for requests to reject and None for others, as Tornado expects."""
        try:
            host = parse_host(request.host)
            given = request.headers.get("Origin")
            origin = host if given is None else parse_host(urlsplit(given).netloc)
        except ValueError:
            return {}
        is_own = _find_address(host[0]) is not None or self._is_known(*host)
        return None if is_own and (origin == host or self._is_known(*origin)) else {}

    def _is_known(self, name: str, port: int | None) -> bool:
        if is_local(name):
            return True
        return any(
            fnmatchcase(name, known) and (own in (None, port) or (port is None and own in WEB_PORTS))
            for known, own in self._known
        )


class RejectHandler(RequestHandler):
    """Handler that rejects requests."""

    def prepare(self) -> None:
        """Finish the request with an error."""
        self.set_status(403)
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish("unknown host in Host or Origin; allow it when the cluster is started\n")


def guard(application: Any, hosts: Iterable[str]) -> None:
    """Restrict the pages of a scheduler or a worker to requests by these hosts; `*` among them allows all.

    Parameters
    ----------
    application : `http_application` of the scheduler or the worker
    """
    known = [*hosts]
    if "*" not in known:
        application.add_handlers(".*", [Rule(UnknownHosts(known), RejectHandler)])


@contextmanager
def guarding(hosts: Iterable[str]) -> Iterator[None]:
    """Restrict the pages of schedulers and workers started in the context to requests by these hosts."""
    loaded = [name for name in dask.config.get(PRELOAD, []) if name != MODULE]
    with dask.config.set({HOSTS: [*hosts], PRELOAD: [*loaded, MODULE]}):
        yield


def list_hosts(bound: Sequence[str], origins: Sequence[str]) -> list[str]:
    """List the hosts that pages answer to, in addition to addresses and loopback names.

    Parameters
    ----------
    bound : hosts at which scheduler, workers and dashboard listen
    origins : hosts allowed by the user, in addition to those of Dask's configuration
    """
    names = [f"[{name}]" if ":" in name else name for name in dict.fromkeys(bound)]
    is_anywhere = any(address is not None and address.is_unspecified for address in map(_find_address, bound))
    own = [socket.gethostname(), socket.getfqdn()] if is_anywhere else []
    configured = [*dask.config.get(ORIGINS, ["*"])]
    is_default = configured == ["*"] and dask.config.get(ORIGINS, None, config=dask.config.collect()) is None
    return [*names, *own, *origins, *([] if is_default else configured)]


def parse_host(host: str) -> tuple[str, int | None]:
    """Split `HOST[:PORT]` into the name, in lower case without brackets, and the port."""
    found = _HOST.fullmatch(host)
    if found is None:
        raise ValueError(f"not a host: {host!r}")
    return found["name"].strip("[]").lower(), None if found["port"] is None else int(found["port"])


def is_local(name: str) -> bool:
    """Return whether an address or name can be reached from this machine only."""
    address = _find_address(name)
    return name == "localhost" or (address is not None and bool(address.is_loopback))


def _find_address(name: str) -> Any:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
