"""What a URL has to be for runs to be kept there: known without asking anybody."""

from __future__ import annotations

from urllib.parse import urlsplit

from smolsum.errors import UsageError

SEPARATOR = "://"
LOCAL = ("file", "local")
READ_ONLY = ("http", "https", "github", "gist", "git", "data", "zip", "tar", "libarchive", "reference")
"""protocols that fsspec only reads from"""
MIRROR = "--mirror s3://BUCKET/FOLDER, or file:///FOLDER for a disk"


def protocol_of(url: str) -> str:
    """The protocol of a URL of a folder. UsageError for what is none, or holds a password, and for a protocol that
    nothing here speaks."""
    protocol, found, place = url.rstrip("/").partition(SEPARATOR)
    if not found or not place or (protocol in LOCAL and not place.startswith("/")):
        raise UsageError(f"no URL to mirror runs at: {url!r}", hint=MIRROR)
    if urlsplit(url).password:
        raise UsageError(
            "--mirror holds a password, which would be written into the run's settings",
            hint="give credentials by the environment (AWS_… for s3) or the store's own configuration file",
        )
    from fsspec import get_filesystem_class

    for name in _protocols(url):
        try:
            get_filesystem_class(name)
        except ImportError as error:
            extra = "uv sync --extra s3, or pip install s3fs" if name in ("s3", "s3a") else f"pip install: {error}"
            raise UsageError(f"nothing installed can reach {url}", hint=extra) from error
        except ValueError as error:
            raise UsageError(f"cannot mirror to {url}: {error}", hint=MIRROR) from error
    return protocol


def check_mirror(url: str) -> None:
    """UsageError where nothing can be kept at such a URL, so that a mistake is known before anything is loaded."""
    protocol_of(url)
    for name in _protocols(url):
        if name == "memory":
            raise UsageError(f"{url} is gone when this process ends: nobody could go on from there", hint=MIRROR)
        if name in READ_ONLY:
            raise UsageError(f"{url} is of a kind that cannot be written to: {name} is only read from", hint=MIRROR)


def _protocols(url: str) -> list[str]:
    """All of a chain's: `simplecache::s3://BUCKET` is two."""
    return [part.partition(SEPARATOR)[0] for part in url.split("::")]
