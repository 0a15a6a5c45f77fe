"""HTTP to a model behind an OpenAI-compatible endpoint: the proxies and certificates on the way, one client for all
questions, and the meaning of its answers and failures.

By httpx: OpenAI's own client hides its attempts, which judgements count and budgets limit, takes its account's headers
to every server, and has another HTTP library below it from version to version.
"""

import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from types import TracebackType
from typing import Any, Self
from urllib.request import getproxies, proxy_bypass

import httpx

from smolsum.errors import SmolsumError, UnreachableError, UsageError, nearest
from smolsum.llm.endpoints import Endpoint, without_credentials

PREFLIGHT_S = 15.0
"""that a connection and the list of models may take"""
MAX_BRACES = 1000
"""of an answer, at which a JSON object may begin"""
TOP_LOGPROBS = 20
"""of a token, the most that OpenAI's API returns"""
MAX_QUOTED = 120
"""characters of a server's text that an error quotes"""


def _proxy_of(url: str) -> str:
    """Return the proxy that the environment names for a URL, without credentials; empty without one."""
    parts, proxies = httpx.URL(url), getproxies()
    if is_loopback(url) or proxy_bypass(parts.host):
        return ""
    return without_credentials(proxies.get(parts.scheme) or proxies.get("all") or "")


def is_loopback(url: str) -> bool:
    """Return whether the URL is of this machine, which no proxy can reach."""
    host = httpx.URL(url).host
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _environment_error(error: Exception, proxy: str) -> UsageError:
    """Return the error for a proxy or certificates of the environment that cannot be used."""
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


@dataclass(frozen=True)
class TokenChoice:
    """A token of an answer, and the natural log-probs of the likeliest tokens in its place, its own among them."""

    token: str
    logprobs: Mapping[str, float]


@dataclass(frozen=True)
class Call:
    """One question: its prompt, the JSON schema of the answer, and a function that reads the answer from the object
    (BadAnswer if it cannot). Without a schema the answer is any text, read from `{"text": …}`."""

    prompt: str
    schema: Mapping[str, Any] | None
    read: Callable[[Mapping[str, Any]], Any]
    system: str = ""
    earlier: tuple[Mapping[str, str], ...] = ()
    """messages of a chat between the system's and the prompt"""
    weigh: Callable[[Mapping[str, Any], Sequence[TokenChoice]], Any] | None = None
    """reads the answer in place of `read`, with the tokens that it was written in"""


@dataclass(frozen=True)
class Answer:
    """An answer as `Call.read` returned it, and the tokens that the endpoint counted (0 if it counts none)."""

    value: Any
    input_tokens: int
    output_tokens: int


class NoAnswer(Exception):
    """A failure that may pass: time-out, lost connection, 429, 5xx. `retry_after` are the seconds that the endpoint
    asks for, `tokens` those of input and output that were paid for all the same."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.tokens = (0, 0)


class BadAnswer(NoAnswer):
    """An answer of the wrong kind; the next one may be right."""


class Declined(Exception):
    """The endpoint refuses this one question, and would refuse it again."""


class ChatClient:
    """Connections to one endpoint, kept for all questions. Deadlines are the caller's (`asyncio.timeout`)."""

    def __init__(self, endpoint: Endpoint, *, connections: int) -> None:
        self.endpoint = endpoint
        self._structured = True
        self._proxy = _proxy_of(endpoint.url)
        try:
            self._http = httpx.AsyncClient(
                headers={"Authorization": f"Bearer {endpoint.key}"} if endpoint.key else {},
                limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
                timeout=httpx.Timeout(None, connect=PREFLIGHT_S),
                trust_env=not is_loopback(endpoint.url),
            )
        except (ImportError, ValueError, OSError, httpx.InvalidURL) as error:
            raise _environment_error(error, self._proxy) from error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def models(self) -> list[str]:
        """Return the names that the endpoint lists; empty without a list. Raises UnreachableError if nothing answers,
        UsageError if the key is refused."""
        try:
            response = await self._http.get(f"{self.endpoint.url}/models", timeout=PREFLIGHT_S)
        except httpx.ReadTimeout:
            return []  # it takes connections: the first question will show
        except httpx.HTTPError as error:
            said = f"{type(error).__name__}: {error}".rstrip(": ") + self._through
            raise UnreachableError(
                f"the {self.endpoint.role}'s endpoint {self.endpoint.address} does not answer: {said}",
                hint=f"start it, or correct {self.endpoint.url_variable}, then run this again",
            ) from error
        if response.status_code in (401, 403):
            raise self._refused(response)
        try:
            return [str(model["id"]) for model in response.json()["data"]]
        except (ValueError, TypeError, KeyError):
            return []

    async def ask(self, call: Call) -> Answer:
        """Return the answer to one question; the endpoint promises JSON of its schema, if it can.

        NoAnswer, BadAnswer and Declined concern this question; UsageError and SmolsumError concern all: a refused key,
        an unknown model, an account without credit.
        """
        messages = [{"role": "system", "content": call.system}] if call.system else []
        messages += [*map(dict, call.earlier), {"role": "user", "content": call.prompt}]
        body: dict[str, Any] = {"model": self.endpoint.model, "messages": messages}
        if call.weigh is not None:
            body |= {"logprobs": True, "top_logprobs": TOP_LOGPROBS}
        schema = call.schema if self._structured else None
        if schema is not None:
            promise = {"name": "verdict", "strict": True, "schema": {**schema, "additionalProperties": False}}
            body["response_format"] = {"type": "json_schema", "json_schema": promise}
        try:
            response = await self._http.post(f"{self.endpoint.url}/chat/completions", json=body)
        except httpx.HTTPError as error:
            raise NoAnswer(f"{type(error).__name__}: {error}".rstrip(": ") + self._through) from error
        refused = any(name in response.text for name in ("response_format", "json_schema"))
        if schema is not None and refused and response.status_code in (400, 422):
            self._structured = False  # the prompt asks for JSON too
            return await self.ask(call)
        if call.weigh is not None and response.status_code in (400, 422) and "logprobs" in response.text:
            raise self._no_logprobs(self._error_text(response))
        if response.status_code != 200:
            raise await self._failure(response)
        if _is_page(response):
            raise self._no_endpoint("a web page")
        return self._read(response, call)

    @property
    def _through(self) -> str:
        return f" (through the proxy {self._proxy})" if self._proxy else ""

    async def _failure(self, response: httpx.Response) -> Exception:
        """Return the error that a status other than 200 means."""
        status, said = response.status_code, self._error_text(response)
        message = f"HTTP {status}: {said}" if said else f"HTTP {status}"
        if status in (401, 403):
            return self._refused(response)
        if response.is_redirect:
            to = without_credentials(response.headers.get("location", "")).removesuffix("/chat/completions")
            return UsageError(
                f"the endpoint {self.endpoint.address} has moved (HTTP {status}) to {to or 'nowhere'}",
                hint=f"export {self.endpoint.url_variable}={to}" if to.startswith("http") else self._right_path,
            )
        if status == 405 or (status < 500 and status not in (404, 429) and _is_page(response)):
            return self._no_endpoint(f"HTTP {status}")
        if status == 404 or "model_not_found" in response.text:
            model, listed = self.endpoint.model, await self.models()
            return UsageError(
                f"the endpoint {self.endpoint.address} has no {self.endpoint.role} {model!r} ({message})",
                hint=nearest(model, listed)
                if listed and model not in listed
                else f"{self.endpoint.option} with a name that it lists, or {self.endpoint.url_variable} with the "
                "right path (…/v1)",
            )
        if "insufficient_quota" in response.text:
            return SmolsumError(
                f"the {self.endpoint.role}'s account has no credit left ({message})",
                hint="top it up, then run this again",
            )
        if status in (408, 409, 425, 429) or status >= 500:
            return NoAnswer(message, _retry_after(response))
        return Declined(message)

    def _no_endpoint(self, answer: str) -> UsageError:
        return UsageError(
            f"{self.endpoint.address} is not an OpenAI-compatible endpoint: it answers with {answer}",
            hint=self._right_path,
        )

    def _refused(self, response: httpx.Response) -> UsageError:
        said = self._error_text(response)
        return UsageError(
            f"the endpoint {self.endpoint.address} refuses the key (HTTP {response.status_code}: {said})",
            hint=f"export {self.endpoint.key_variable}=… with a key for that endpoint",
        )

    def _read(self, response: httpx.Response, call: Call) -> Answer:
        try:
            content = response.json()
            text = content["choices"][0]["message"]["content"]
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise BadAnswer(f"not a chat completion: {self._quoted(response.text)!r}") from error
        usage = content.get("usage")
        counts = [usage.get(f"{kind}_tokens") if isinstance(usage, dict) else 0 for kind in ("prompt", "completion")]
        read, written = (count if isinstance(count, int) and 0 <= count < 2**53 else 0 for count in counts)
        try:
            if not isinstance(text, str) or not text.strip():
                raise BadAnswer("an empty answer")
            found = {"text": text} if call.schema is None else parse_object(text, call.schema.get("required", ()))
            if call.weigh is None:
                return Answer(call.read(found), read, written)
            return Answer(call.weigh(found, self._tokens(content)), read, written)
        except BadAnswer as error:
            error.tokens = (read, written)
            raise

    def _tokens(self, content: Any) -> list[TokenChoice]:
        """Return the tokens of an answer. Raises UsageError if the endpoint returns none."""
        try:
            listed = content["choices"][0]["logprobs"]["content"]
            tokens = [
                TokenChoice(
                    str(one["token"]), {str(top["token"]): float(top["logprob"]) for top in (*one["top_logprobs"], one)}
                )
                for one in listed
            ]
        except (TypeError, KeyError, IndexError, ValueError) as error:
            raise self._no_logprobs("an answer without them") from error
        if not tokens:
            raise self._no_logprobs("an answer without them")
        return tokens

    def _no_logprobs(self, said: str) -> UsageError:
        return UsageError(
            f"the {self.endpoint.role} {self.endpoint.name} does not return log-probs of its tokens: {said}",
            hint="leave --weighted out, or name a judge that returns them",
        )

    def _error_text(self, response: httpx.Response) -> str:
        """Return the endpoint's own message for a failure."""
        if _is_page(response):
            return "a web page"
        try:
            error = response.json()["error"]
            said = error["message"] if isinstance(error, dict) else error
        except (ValueError, TypeError, KeyError):
            said = response.text
        return self._quoted(str(said))

    def _quoted(self, text: str) -> str:
        """Return the start of a server's text; a server may repeat the key that it got."""
        shown = text.replace(self.endpoint.key, "(the key)") if self.endpoint.key else text
        return " ".join(shown.split())[:MAX_QUOTED]

    @property
    def _right_path(self) -> str:
        return f"export {self.endpoint.url_variable} with the right path, often http://HOST:PORT/v1"


def _retry_after(response: httpx.Response) -> float | None:
    """Return the seconds; a date is ignored, as growing pauses serve as well."""
    try:
        return max(0.0, float(response.headers["retry-after"]))
    except (KeyError, ValueError):
        return None


def parse_object(text: str, wanted: Collection[str]) -> dict[str, Any]:
    """Return the JSON object in an answer, perhaps in a fence, between words or after a model's thoughts: the last one
    with a key of `wanted`, else the last. Raises BadAnswer without any."""
    decoder, found, start, tried = json.JSONDecoder(), list[dict[str, Any]](), text.find("{"), 0
    while start >= 0 and (tried := tried + 1) <= MAX_BRACES:
        try:
            value, end = decoder.raw_decode(text, start)
            found.append(value)
        except (ValueError, RecursionError):
            end = start + 1
        start = text.find("{", end)
    if not found:
        raise BadAnswer(f"no JSON in the answer: {' '.join(text.split())[:MAX_QUOTED]!r}")
    return next((value for value in reversed(found) if any(key in value for key in wanted)), found[-1])


def _is_page(response: httpx.Response) -> bool:
    """Return whether this is a web page."""
    start = response.text.lstrip()[:14].lower()
    return "text/html" in response.headers.get("content-type", "") or start.startswith(("<!doctype html", "<html"))
