"""TLS between all parts of a cluster: client, scheduler, workers, and who looks at the dashboard.

A folder with three files in PEM says who belongs to a cluster. Who has them gets in everywhere, and nobody else
anywhere:

    ca.pem    the authority that all of them believe
    cert.pem  a certificate that it signed
    key.pem   the private key of that, which only its owner may read

Those that are made here come with a fourth, dask.yaml, by which Dask's own commands find them: `DASK_CONFIG` names it.
"""

from __future__ import annotations

import ipaddress
import os
import shutil
import socket
import ssl
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dask
import yaml  # type: ignore[import-untyped]

from mgspmv.errors import MissingDependencyError, OptionError
from mgspmv.files import hold_folder, name_own, remove_abandoned
from mgspmv.os_errors import translating

TEMPORARY = "temporary"
"""In place of a folder: certificates for as long as what is started for them."""
DAYS = 365
"""For which certificates are valid."""
_NAMES = ("ca.pem", "cert.pem", "key.pem")
MODULE = "mgspmv.distribute.tls"
"""This one, which schedulers and workers load at their start."""


@dataclass(frozen=True)
class Certificates:
    """The three files of a folder.

    Raises
    ------
    OptionError : one is missing, damaged, expired or not the others', or the key is encrypted or readable by others
    """

    folder: Path

    def __post_init__(self) -> None:
        for path in (self.ca, self.cert, self.key):
            if not path.is_file():
                raise OptionError(
                    f"{self.folder} has no {path.name}; a folder for tls= has ca.pem, cert.pem and key.pem, as "
                    "`mgspmv certificates DIR` makes them"
                )
        if self.key.stat().st_mode & 0o077:
            raise OptionError(f"{self.key} may be read by others than its owner; chmod 600 {self.key}")
        _check_whole(self)

    @property
    def ca(self) -> Path:
        return self.folder / "ca.pem"

    @property
    def cert(self) -> Path:
        return self.folder / "cert.pem"

    @property
    def key(self) -> Path:
        return self.folder / "key.pem"

    @property
    def config(self) -> dict[str, Any]:
        """For Dask's configuration: connections and pages are encrypted, and only for who has a certificate."""
        ca, cert, key = (str(path.resolve()) for path in (self.ca, self.cert, self.key))
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
        return config


def make_certificates(folder: str | Path, hosts: Sequence[str] = (), days: int = DAYS) -> Certificates:
    """Make an authority, a certificate signed by it, and Dask's configuration for them; the authority's own key is not
    kept.

    Parameters
    ----------
    folder : for the files; made if it is not there
    hosts : names and addresses of the machines, which browsers compare; this machine's are always among them. Parts of
        a cluster do not compare them
    days : for which they are valid

    Raises
    ------
    OptionError : the folder has one of the files, which is left as it is
    StoreError : they cannot be written
    MissingDependencyError : `cryptography` is not installed
    """
    folder = Path(folder)
    if days < 1:
        raise OptionError(f"days must be at least 1, not {days}")
    if folder.exists() and not folder.is_dir():
        raise OptionError(f"{folder} is a file; name a folder for the certificates, which is made if it is not there")
    for name in _NAMES:
        if (folder / name).exists():
            raise OptionError(f"{folder / name} is there already; take it away, or choose another folder")
    authority, certificate, key = _sign(hosts, days)
    is_new = not folder.exists()
    with translating(folder, "write"):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _write_private(folder / "key.pem", key)
            (folder / "cert.pem").write_bytes(certificate)
            (folder / "ca.pem").write_bytes(authority)
            made = Certificates(folder)
            (folder / "dask.yaml").write_text(yaml.safe_dump(_nest(made.config)))
        except BaseException:
            for name in _NAMES:
                (folder / name).unlink(missing_ok=True)
            if is_new:
                shutil.rmtree(folder, ignore_errors=True)
            raise
    return made


@contextmanager
def use_tls(where: str | Path | None) -> Iterator[None]:
    """What is started or reached within the context is encrypted, and for nobody without a certificate.

    Parameters
    ----------
    where : folder of `Certificates`; `temporary` for some that are made now and gone with the context; None for none
    """
    if where is None:
        yield
        return
    with ExitStack() as stack:
        if where == TEMPORARY:
            parent, prefix = Path(tempfile.gettempdir()), "mgspmv-tls-"
            remove_abandoned(parent, prefix)
            stack.enter_context(hold_folder(made := parent / f"{prefix}{name_own()}"))
            certificates = make_certificates(made)
        else:
            certificates = Certificates(Path(where))
        with dask.config.set(certificates.config):
            yield


def check_shared(where: str | None) -> None:
    """Raise where workers of other machines do not have the certificates that are asked for."""
    if where == TEMPORARY:
        raise OptionError(
            "other machines do not have certificates that are made here for one run; make a folder by `mgspmv "
            "certificates DIR`, which is at the same path on each of them, and name that"
        )


def is_tls_required() -> bool:
    """Whether parts of a cluster that are started now refuse connections that are not encrypted."""
    return bool(dask.config.get("distributed.comm.require-encryption"))


async def dask_setup(server: Any) -> None:
    """Of a scheduler or worker at its start: who looks at its pages and metrics needs a certificate too."""
    context = getattr(getattr(server, "http_server", None), "ssl_options", None)
    if isinstance(context, ssl.SSLContext):
        context.verify_mode = ssl.CERT_REQUIRED


def _nest(config: Mapping[str, Any]) -> dict[str, Any]:
    """Of names with dots, such as Dask's `set` takes, the tables that its files have."""
    nested: dict[str, Any] = {}
    for name, value in config.items():
        *tables, key = name.split(".")
        table = nested
        for own in tables:
            table = table.setdefault(own, {})
        table[key] = value
    return nested


def _check_whole(own: Certificates) -> None:
    """Raise unless the key is the certificate's, and the certificate is the authority's and valid now."""
    for path in (own.ca, own.cert, own.key):
        text = path.read_text(errors="replace")
        if "-----BEGIN " not in text:
            raise OptionError(f"{path} is no file in PEM")
        if path == own.key and "ENCRYPTED" in text:
            raise OptionError(f"{path} asks for a password, which nobody is there to give; decrypt it first")
    try:
        server = _make_context(own, ssl.Purpose.CLIENT_AUTH)
        client = _make_context(own, ssl.Purpose.SERVER_AUTH)
        _shake_hands(client, server)
    except ssl.SSLError as error:
        reason = getattr(error, "verify_message", "") or error.reason or str(error)
        raise OptionError(
            f"the certificates in {own.folder} are not whole: {str(reason).lower().replace('_', ' ')}; key.pem must be "
            "the key of cert.pem, and ca.pem must have signed that, for a time that is not over"
        ) from error


def _make_context(own: Certificates, purpose: ssl.Purpose) -> ssl.SSLContext:
    """As Dask's: both sides show certificates, and names of machines are not compared."""
    context = ssl.create_default_context(purpose, cafile=str(own.ca))
    context.load_cert_chain(own.cert, own.key)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def _shake_hands(client: ssl.SSLContext, server: ssl.SSLContext) -> None:
    """Let one side connect to the other in memory."""
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


def _sign(hosts: Sequence[str], days: int) -> tuple[bytes, bytes, bytes]:
    """In PEM: an authority, a certificate of it, and the private key of that."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID
    except ImportError as error:
        raise MissingDependencyError(
            "certificates are made with cryptography, which is not installed; install mgspmv[tls], or bring your own"
        ) from error

    def begin(name: str) -> tuple[Any, Any, Any]:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = datetime.now(UTC)
        built = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))  # other machines' clocks
            .not_valid_after(now + timedelta(days=days))
        )
        return key, subject, built

    authority_key, issuer, authority = begin("mgspmv authority")
    key, _, certificate = begin("mgspmv")
    signed = (
        authority.issuer_name(issuer)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    names = [_name_host(x509, host) for host in dict.fromkeys([*_list_own_hosts(), *hosts])]
    own = (
        certificate.issuer_name(issuer)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return signed.public_bytes(pem), own.public_bytes(pem), private


def _list_own_hosts() -> list[str]:
    return ["localhost", "127.0.0.1", "::1", socket.gethostname()]


def _name_host(x509: Any, host: str) -> Any:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise OptionError(f"{host!r} is neither a name nor an address of a machine ({error})") from error


def _write_private(path: Path, content: bytes) -> None:
    """Write a file that nobody but its owner ever could read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
