"""TLS between all parts of a cluster: client, scheduler, workers, and viewers of the dashboard.

A folder with three PEM files holds the credentials of a cluster; every part accepts connections with them only:

    ca.pem    the certificate authority that all parts trust
    cert.pem  a certificate that it signed
    key.pem   the private key of the certificate, readable by its owner alone

`docs/security.md` shows how to make them with `openssl`, and the dask.yaml by which Dask's own commands find them.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import dask
from distributed import Security

from mgspmv.errors import MissingDependencyError, OptionError
from mgspmv.files import hold_folder
from mgspmv.os_errors import translating

TEMPORARY = "temporary"
"""Value in place of a folder for certificates that last as long as the cluster that uses them."""
MODULE = "mgspmv.cluster.tls"
"""Name of this module, which schedulers and workers preload."""


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
    with dask.config.set(config):
        _check_whole(folder)
    return config


def _check_whole(folder: Path) -> None:
    """Raise unless the key matches the certificate, and the certificate is signed by the authority and valid now."""
    try:
        security = Security()
        client = security.get_connection_args("client")["ssl_context"]
        _shake_hands(client, security.get_listen_args("scheduler")["ssl_context"])
    except ssl.SSLError as error:
        reason = getattr(error, "verify_message", "") or error.reason or str(error)
        raise OptionError(
            f"the certificates in {folder} are not valid: {str(reason).lower().replace('_', ' ')}; key.pem must be the "
            "key of cert.pem, and cert.pem must be signed by ca.pem and not expired"
        ) from error


def _write_temporary(folder: Path) -> None:
    """Write certificates made by Dask into an existing folder that only its owner may enter.

    Raises
    ------
    MissingDependencyError : `cryptography` is not installed
    StoreError : they cannot be written
    """
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
    """Require a certificate for the pages and metrics of a scheduler or worker; Dask calls this at its start."""
    context = getattr(getattr(server, "http_server", None), "ssl_options", None)
    if isinstance(context, ssl.SSLContext):
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # temporary certificates made by Dask fail strict checks


def _shake_hands(client: ssl.SSLContext, server: ssl.SSLContext) -> None:
    """Do the TLS handshake between both sides in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    while sides:
        for side in list(sides):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            sides.remove(side)
