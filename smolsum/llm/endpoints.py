"""The endpoint of each role: which server a model is asked at, and with which key.

A key belongs to the server that it was given with, and goes to no other one:

- `SMOLSUM_<ROLE>_URL` gets the key of `SMOLSUM_<ROLE>_API_KEY`, or none;
- without them the role uses `OPENAI_BASE_URL` (else OpenAI's) with `OPENAI_API_KEY`;
- a role's key without a URL is for OpenAI, and refused where `OPENAI_BASE_URL` names another server.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import httpx

from smolsum.errors import UsageError

OPENAI = "https://api.openai.com/v1"
DEFAULT_JUDGE = "gpt-5-mini-2025-08-07"
"""the study's"""
SHARED_URL, SHARED_KEY = "OPENAI_BASE_URL", "OPENAI_API_KEY"
"""the variables of every role that has none"""


@dataclass(frozen=True)
class EndpointRole:
    """Why a model is asked: the role's name in messages and in the cache's path, the start of its variables, and the
    option that names the model. Without variables a role uses the endpoint of `shares`, else the shared variables."""

    name: str
    prefix: str
    option: str
    shares: "EndpointRole | None" = None

    @property
    def url_variable(self) -> str:
        """The environment variable of the role's URL."""
        return f"SMOLSUM_{self.prefix}_URL"

    @property
    def key_variable(self) -> str:
        """The environment variable of the role's key."""
        return f"SMOLSUM_{self.prefix}_API_KEY"


POLICY = EndpointRole("model", "POLICY", "--api")
READER = EndpointRole("reader", "READER", "--set task.reader=MODEL:")
GRADER = EndpointRole("grader", "GRADER", "--set task.grader=MODEL:")
CORRUPTOR = EndpointRole("corruptor", "CORRUPTOR", "--set task.corruptor=NAME:")
JUDGE = EndpointRole("judge", "JUDGE", "--judge")
SECOND_JUDGE = EndpointRole("judge", "SECOND_JUDGE", "--second-judge", shares=JUDGE)
REWARD_JUDGE = EndpointRole("reward-judge", "JUDGE", "--set judge.model=MODEL:")
"""the judge's endpoint, for the signals that ask it"""
ROLES = (JUDGE, SECOND_JUDGE, POLICY, READER, GRADER, CORRUPTOR)


@dataclass(frozen=True)
class Endpoint:
    """The URL of a model, its name there, its role for us, the option that names it, and the environment variables that
    its URL and key come from."""

    url: str = field(repr=False)  # like the key: no traceback may show credentials
    model: str
    key: str = field(default="", repr=False)
    role: str = "judge"
    option: str = "--judge"
    url_variable: str = SHARED_URL
    key_variable: str = SHARED_KEY

    @property
    def address(self) -> str:
        """The URL without credentials, which may be shown and written to files."""
        return without_credentials(self.url)

    @property
    def name(self) -> str:
        """The model's unique name: with the address unless that is OpenAI's."""
        return name_with_address(self.model, self.address)


def find_endpoint(model: str, environ: Mapping[str, str], role: EndpointRole = JUDGE) -> Endpoint:
    """Return the endpoint of a role's model. Raises UsageError without a key for OpenAI, for a bad URL or key, and for
    a key of which nothing says where it belongs."""
    server = replace(_server_of(role, environ), model=model, role=role.name, option=role.option)
    if server.url == OPENAI and not server.key:
        alone = "" if role.url_variable == server.url_variable else f" ({role.url_variable} for the {role.name} alone)"
        raise UsageError(
            f"no key for the {role.name} {model}: {server.key_variable} is not set",
            hint=f"export {server.key_variable}=…, or {server.url_variable}=http://HOST:PORT/v1 for a server of your "
            f"own{alone}",
        )
    if not all(" " < character <= "~" for character in server.key):
        raise UsageError(
            f"{server.key_variable} holds a character that no key has: a blank, a line end, a control character or "
            "non-ASCII",
            hint=f"export {server.key_variable}=… again, with the key alone",
        )
    hint = f"export {server.url_variable}=http://HOST:PORT/v1"
    try:
        parts = httpx.URL(server.url)
    except httpx.InvalidURL as error:
        raise UsageError(f"{server.url_variable} cannot be used: {error}", hint=hint) from error
    if parts.scheme not in ("http", "https") or not parts.host:
        raise UsageError(f"{server.url_variable} is not a URL: {server.address!r}", hint=hint)
    return server


def has_url(role: EndpointRole, environ: Mapping[str, str]) -> bool:
    """Return whether the environment names a server for a role."""
    own = bool(_text(environ, role.url_variable))
    return own or (has_url(role.shares, environ) if role.shares else bool(_text(environ, SHARED_URL)))


def _server_of(role: EndpointRole, environ: Mapping[str, str]) -> Endpoint:
    """Return the server of a role: its own, or the one that it shares; the model is not known here."""
    shared, own = _server(environ, SHARED_URL, SHARED_KEY), _server(environ, role.url_variable, role.key_variable)
    instead = _server_of(role.shares, environ) if role.shares else shared
    has_own_url = bool(_text(environ, role.url_variable))
    if has_own_url and not own.key:  # the same server takes the same key; any other one gets none
        same = next((server for server in (instead, shared) if server.url == own.url), own)
        return replace(own, key=same.key, key_variable=same.key_variable) if same.key else own
    if own.key and not has_own_url and instead.url != OPENAI:
        raise UsageError(
            f"{own.key_variable} is set, but nothing says which server that key is for: {own.url_variable} is not set, "
            f"and {instead.url_variable} names {instead.address}",
            hint=f"export {own.url_variable}={OPENAI}, or with the URL that the key is for",
        )
    return own if own.key else instead


def _server(environ: Mapping[str, str], url_variable: str, key_variable: str) -> Endpoint:
    url, key = _text(environ, url_variable).rstrip("/") or OPENAI, _text(environ, key_variable)
    return Endpoint(url, "", key, url_variable=url_variable, key_variable=key_variable)


def _text(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name, "").strip()


def name_with_address(model: str, address: str) -> str:
    """Return a model's name, with its endpoint's address unless that is OpenAI's, as a name may mean any model."""
    return model if address in ("", OPENAI) else f"{model} at {address}"


def without_credentials(url: str) -> str:
    """Return a URL without user, password, query and fragment."""
    try:
        found = str(httpx.URL(url).copy_with(username=None, password=None, query=None, fragment=None))
    except (httpx.InvalidURL, ValueError):
        found = url.partition("?")[0]
    return found.rpartition("@")[2].rstrip("/")
