"""An S3 that runs in this process, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import fsspec
import pytest


@contextmanager
def serve_s3() -> Iterator[Any]:
    """The file system of an S3 with the bucket `bucket`, which the environment names meanwhile."""
    from moto.server import ThreadedMotoServer
    from s3fs import S3FileSystem

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    given = {"AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}
    given |= {"AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"}
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in given.items():
                patch.setenv(name, value)
            S3FileSystem.clear_instance_cache()  # of those that know another server
            system = fsspec.filesystem("s3", skip_instance_cache=True)
            system.makedirs("bucket", exist_ok=True)  # what another server of this process held is there
            yield system
    finally:
        server.stop()
