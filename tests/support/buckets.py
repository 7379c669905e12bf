"""Object stores that run here, for tests: an S3, a Google Cloud Storage and an Azure Blob Storage."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from tempfile import TemporaryDirectory
from typing import Any

import fsspec
import pytest

from tests.support.ports import find_free_port, is_open
from tests.support.waiting import wait_for

AZURITE = "azurite-blob"
"""The program that is an Azure Blob Storage; `npm install -g azurite`."""
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""That everybody knows, of the only account of Azurite."""


@contextmanager
def serve_s3(address: str = "127.0.0.1") -> Iterator[Any]:
    """The file system of an S3 with the bucket `bucket`, which the environment names meanwhile.

    Parameters
    ----------
    address : of this machine, where it listens
    """
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address=address, port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    given = {"AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}
    given |= {"AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true", "AWS_ALLOW_HTTP": "true"}
    try:
        with _open_bucket("s3", given) as system:
            yield system
    finally:
        server.stop()


@contextmanager
def serve_gcs() -> Iterator[Any]:
    """As `serve_s3`, of a Google Cloud Storage."""
    os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"  # read once; sorts of buckets that the emulator has not
    pytest.importorskip("gcsfs", reason="gcsfs is not installed, which reads gs://")
    emulator = pytest.importorskip("gcp_storage_emulator.server", reason="gcp-storage-emulator is not installed")
    port = find_free_port()
    server = emulator.create_server("127.0.0.1", port, in_memory=True)
    server.start()
    try:
        with _open_bucket("gs", {"STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{port}"}) as system:
            yield system
    finally:
        server.stop()


@contextmanager
def serve_azure() -> Iterator[Any]:
    """As `serve_s3`, of an Azure Blob Storage, with the container `bucket`."""
    pytest.importorskip("adlfs", reason="adlfs is not installed, which reads az://")
    if (program := shutil.which(AZURITE)) is None:
        pytest.skip(f"{AZURITE} is not installed, which is an Azure Blob Storage")
    port = find_free_port()
    account = f"AccountName=devstoreaccount1;AccountKey={AZURE_KEY}"
    connection = f"DefaultEndpointsProtocol=http;{account};BlobEndpoint=http://127.0.0.1:{port}/devstoreaccount1;"
    given = {"AZURE_STORAGE_CONNECTION_STRING": connection, "AZURE_ALLOW_HTTP": "true"}
    given |= {"AZURE_STORAGE_ACCOUNT_NAME": "devstoreaccount1", "AZURE_STORAGE_ACCOUNT_KEY": AZURE_KEY}
    given |= {"AZURE_STORAGE_ENDPOINT": f"http://127.0.0.1:{port}/devstoreaccount1"}
    with TemporaryDirectory() as folder:
        options = ["--blobPort", str(port), "--silent", "--skipApiVersionCheck", "--disableTelemetry"]
        command = [program, *options, "--inMemoryPersistence"]
        with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL) as process:
            try:
                assert wait_for(lambda: is_open(port)), f"{AZURITE} does not listen"
                with _open_bucket("az", given) as system:
                    yield system
            finally:
                process.kill()


SERVERS = {"s3": serve_s3, "gs": serve_gcs, "az": serve_azure}
"""By protocol."""


@contextmanager
def _open_bucket(protocol: str, environment: Mapping[str, str]) -> Iterator[Any]:
    """The file system that the environment leads to, meanwhile; there is a bucket then."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        fsspec.get_filesystem_class(protocol).clear_instance_cache()  # of those that know another server
        system = fsspec.filesystem(protocol, skip_instance_cache=True)
        with suppress(FileExistsError):  # what another S3 of this process held is there
            system.mkdir("bucket")
        yield system
    fsspec.get_filesystem_class(protocol).clear_instance_cache()
