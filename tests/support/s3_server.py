"""A real S3-compatible server on a loopback port, that tests start, stop and start again with what it holds."""

import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest.mock import patch

import boto3
from moto.server import ThreadedMotoServer

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "tester",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_MAX_ATTEMPTS": "1",  # outages are part of the tests
}
"""moto takes any"""


@dataclass
class S3Server:
    """The server and one bucket on it; `environment` is what a client needs."""

    port: int = 0
    """a free one, once it is started"""
    bucket: str = field(default_factory=lambda: f"bucket-{secrets.token_hex(4)}")
    server: ThreadedMotoServer | None = None

    @property
    def environment(self) -> dict[str, str]:
        """Where it is, and who we are."""
        return {**CREDENTIALS, "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{self.port}"}

    @property
    def url(self) -> str:
        """A folder for runs."""
        return f"s3://{self.bucket}/runs"

    def start(self) -> None:
        """Answer from now on; what was stored before is still there."""
        self.server = ThreadedMotoServer(ip_address="127.0.0.1", port=self.port, verbose=False)
        self.server.start()
        self.port = self.server.get_host_and_port()[1]

    def stop(self) -> None:
        """Refuse connections from now on."""
        if self.server is not None:
            self.server.stop()
            self.server = None

    def client(self):  # type: ignore[no-untyped-def]
        """Amazon's own client."""
        environment = self.environment
        return boto3.client(
            "s3",
            endpoint_url=environment["AWS_ENDPOINT_URL_S3"],
            aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
            region_name=environment["AWS_DEFAULT_REGION"],
        )

    def keys(self) -> set[str]:
        """The objects in the bucket."""
        pages = self.client().get_paginator("list_objects_v2").paginate(Bucket=self.bucket)
        return {item["Key"] for page in pages for item in page.get("Contents", [])}


@contextmanager
def serving() -> Iterator[S3Server]:
    """A server with a bucket while the block runs, which this process's environment names."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = S3Server()
    server.start()
    try:
        with patch.dict(os.environ, server.environment):
            server.client().create_bucket(Bucket=server.bucket)
            yield server
    finally:
        server.stop()
