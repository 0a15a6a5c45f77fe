"""Where an endpoint is, and what lies on the way to it: proxies and certificates that the environment names."""

from __future__ import annotations

import os
from ipaddress import ip_address
from urllib.request import getproxies, proxy_bypass

import httpx

from smolsum.errors import UsageError

OPENAI = "https://api.openai.com/v1"


def name_at(model: str, address: str) -> str:
    """A model's name, which means the same one only at OpenAI, and elsewhere its endpoint's address."""
    return model if address in ("", OPENAI) else f"{model} at {address}"


def proxy_of(url: str) -> str:
    """The proxy, without credentials, that the environment names for a URL; empty where there is none."""
    parts, proxies = httpx.URL(url), getproxies()
    if is_loopback(url) or proxy_bypass(parts.host):
        return ""
    return bare(proxies.get(parts.scheme) or proxies.get("all") or "")


def bare(url: str) -> str:
    """A URL without user, password, query and fragment."""
    try:
        found = str(httpx.URL(url).copy_with(username=None, password=None, query=None, fragment=None))
    except (httpx.InvalidURL, ValueError):
        found = url.partition("?")[0]
    return found.rpartition("@")[2].rstrip("/")


def is_loopback(url: str) -> bool:
    """Whether the URL is of this very machine, which no proxy can reach."""
    host = httpx.URL(url).host
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def unusable(error: Exception, proxy: str) -> UsageError:
    """What of the environment no client can be made of: a proxy, or certificates."""
    said = (str(error) or type(error).__name__).partition("\n")[0].partition(" URL(")[0]  # which shows the password
    given = {name: os.environ[name] for name in ("SSL_CERT_FILE", "SSL_CERT_DIR") if os.environ.get(name)}
    certificates = [name for name, path in given.items() if not os.path.exists(path)] or list(given)
    if isinstance(error, OSError) and certificates:
        return UsageError(
            f"{' and '.join(certificates)} cannot be read: {error.strerror or said}",
            hint=f"give {certificates[0]} a file of certificates, or unset it",
        )
    return UsageError(
        f"the proxy {proxy or 'of the environment'} cannot be used: {said}",
        hint="give HTTPS_PROXY, HTTP_PROXY or ALL_PROXY as http://HOST:PORT, or name the endpoint in NO_PROXY",
    )
