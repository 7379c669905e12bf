"""Allowed hosts of the pages of schedulers and workers started here.

Pages have no password, and a browser lets any site send requests to this machine: by a domain of the site that it
resolves to an address here (DNS rebinding, seen in `Host`), or over a websocket (seen in `Origin`). Dask accepts all.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import urlsplit

import dask
from tornado.httputil import HTTPServerRequest
from tornado.routing import Matcher, Rule
from tornado.web import RequestHandler

HOSTS = "mgspmv.dashboard-hosts"
"""Dask configuration key that passes the allowed hosts to workers started here."""
PRELOAD = "distributed.scheduler.preload"
"""Dask configuration key of the modules that schedulers load at startup."""
ORIGINS = "distributed.scheduler.dashboard.bokeh-application.allow_websocket_origin"
"""Dask configuration key by which users allow other hosts."""
WEB_PORTS = (80, 443)
"""Default ports of URLs without a port."""

_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[\w.*-]+)(?::(?P<port>[0-9]{1,5}))?", re.ASCII | re.IGNORECASE)


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
    loaded = [name for name in dask.config.get(PRELOAD, []) if name != __name__]
    with dask.config.set({HOSTS: [*hosts], PRELOAD: [*loaded, __name__]}):
        yield


def dask_setup(scheduler: Any) -> None:
    """Guard the pages of a scheduler, which preloads this module; agents guard those of workers."""
    guard(scheduler.http_application, dask.config.get(HOSTS))


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
    return [*names, *own, *origins, *_read_configured()]


def parse_host(host: str) -> tuple[str, int | None]:
    """Split `HOST[:PORT]` into the name, in lower case without brackets, and the port.

    Raises
    ------
    ValueError : it does not have this form
    """
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


def _read_configured() -> list[str]:
    """List the hosts that the user allowed in Dask's configuration; none for Dask's default."""
    configured = [*dask.config.get(ORIGINS, ["*"])]
    is_default = configured == ["*"] and dask.config.get(ORIGINS, None, config=dask.config.collect()) is None
    return [] if is_default else configured
