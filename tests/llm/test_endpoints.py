"""Which server a role's model is asked at, and which key goes there."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.judge_server import answer, failure, serving
from support.refusals import refuses

from smolsum.errors import UsageError
from smolsum.llm.client import BadAnswer, Call, ChatClient, Declined
from smolsum.llm.endpoints import (
    CORRUPTOR,
    GRADER,
    JUDGE,
    OPENAI,
    POLICY,
    READER,
    ROLES,
    SECOND_JUDGE,
    Endpoint,
    EndpointRole,
    find_endpoint,
    has_url,
)

LOCAL, OTHER = "http://127.0.0.1:1/v1", "https://models.example/v1"


@pytest.mark.parametrize(
    ("role", "environ", "url", "key"),
    [
        # one endpoint for all, as ever
        (JUDGE, {"OPENAI_API_KEY": "k"}, OPENAI, "k"),
        (READER, {"OPENAI_BASE_URL": LOCAL, "OPENAI_API_KEY": "k"}, LOCAL, "k"),
        # a role's own server gets its own key or none, and never OpenAI's
        (READER, {"OPENAI_API_KEY": "k", "SMOLSUM_READER_URL": LOCAL}, LOCAL, ""),
        (READER, {"OPENAI_API_KEY": "k", "SMOLSUM_READER_URL": LOCAL, "SMOLSUM_READER_API_KEY": "r"}, LOCAL, "r"),
        (JUDGE, {"OPENAI_API_KEY": "k", "SMOLSUM_READER_URL": LOCAL, "SMOLSUM_READER_API_KEY": "r"}, OPENAI, "k"),
        (POLICY, {"OPENAI_BASE_URL": LOCAL, "OPENAI_API_KEY": "k", "SMOLSUM_POLICY_URL": OTHER}, OTHER, ""),
        # the same server takes the same key
        (JUDGE, {"OPENAI_API_KEY": "k", "SMOLSUM_JUDGE_URL": f"{OPENAI}/"}, OPENAI, "k"),
        (GRADER, {"OPENAI_BASE_URL": LOCAL, "OPENAI_API_KEY": "k", "SMOLSUM_GRADER_URL": LOCAL}, LOCAL, "k"),
        # a key alone is for OpenAI
        (CORRUPTOR, {"SMOLSUM_CORRUPTOR_API_KEY": "c"}, OPENAI, "c"),
        (CORRUPTOR, {"SMOLSUM_CORRUPTOR_API_KEY": "c", "OPENAI_API_KEY": "k"}, OPENAI, "c"),
        # the second judge is where the first one is
        (SECOND_JUDGE, {"SMOLSUM_JUDGE_URL": LOCAL, "SMOLSUM_JUDGE_API_KEY": "j"}, LOCAL, "j"),
        (SECOND_JUDGE, {"SMOLSUM_JUDGE_URL": LOCAL, "SMOLSUM_JUDGE_API_KEY": "j", "SMOLSUM_SECOND_JUDGE_URL": OTHER},
         OTHER, ""),
        (SECOND_JUDGE, {"SMOLSUM_JUDGE_URL": LOCAL, "SMOLSUM_SECOND_JUDGE_URL": OPENAI, "OPENAI_API_KEY": "k"},
         OPENAI, "k"),
    ],
)  # fmt: skip
def test_the_server_and_the_key_of_a_role(role: EndpointRole, environ: dict[str, str], url: str, key: str) -> None:
    """By the role's own variables, else by those of all."""
    found = find_endpoint("m", environ, role)
    assert (found.url, found.key) == (url, key)
    assert found.role == role.name


@pytest.mark.parametrize(
    ("role", "environ", "named"),
    [
        (JUDGE, {"SMOLSUM_JUDGE_API_KEY": "s3cret", "OPENAI_BASE_URL": LOCAL}, "which server"),
        (SECOND_JUDGE, {"SMOLSUM_SECOND_JUDGE_API_KEY": "s3cret", "SMOLSUM_JUDGE_URL": LOCAL},
         "SMOLSUM_JUDGE_URL names http://127.0.0.1:1/v1"),
        (JUDGE, {"SMOLSUM_JUDGE_URL": OPENAI}, "SMOLSUM_JUDGE_API_KEY is not set"),
        (JUDGE, {"SMOLSUM_JUDGE_URL": OPENAI, "OPENAI_BASE_URL": LOCAL, "OPENAI_API_KEY": "s3cret"},
         "SMOLSUM_JUDGE_API_KEY is not set"),
        (READER, {"SMOLSUM_READER_URL": "localhost:80"}, "SMOLSUM_READER_URL is not a URL"),
        (READER, {"SMOLSUM_READER_URL": LOCAL, "SMOLSUM_READER_API_KEY": "s3cr\u00e9t"},
         "SMOLSUM_READER_API_KEY holds a character"),
    ],
)  # fmt: skip
def test_what_is_unclear_is_refused(role: EndpointRole, environ: dict[str, str], named: str) -> None:
    """Before anything is sent, with the variable to set and without the key."""
    with refuses(named, f"export SMOLSUM_{role.prefix}_") as refused:
        find_endpoint("m", environ, role)
    assert "s3cr" not in f"{refused.value.message} {refused.value.hint}"


VALUES = st.sampled_from(["", LOCAL, OTHER, OPENAI])


@given(
    urls=st.dictionaries(st.sampled_from(["OPENAI_BASE_URL", *(role.url_variable for role in ROLES)]), VALUES),
    keys=st.sets(st.sampled_from(["OPENAI_API_KEY", *(role.key_variable for role in ROLES)])),
)
def test_no_key_reaches_a_server_that_it_was_not_given_with(urls: dict[str, str], keys: set[str]) -> None:
    """Whatever is set: the key of a pair of variables goes to the URL of that pair, or to OpenAI where it has none."""
    environ = urls | {name: f"key of {name}".replace(" ", "-") for name in keys}
    pairs = [("OPENAI_BASE_URL", "OPENAI_API_KEY"), *((role.url_variable, role.key_variable) for role in ROLES)]
    own = {environ.get(key): environ.get(url) or OPENAI for url, key in pairs if key in keys}
    for role in ROLES:
        try:
            found = find_endpoint("m", environ, role)
        except UsageError:
            continue
        assert not found.key or own[found.key] == found.url


def test_a_judge_is_there_by_its_own_url_or_that_of_all() -> None:
    """A reader's URL names no judge."""
    assert has_url(JUDGE, {"SMOLSUM_JUDGE_URL": LOCAL})
    assert has_url(JUDGE, {"OPENAI_BASE_URL": LOCAL})
    assert not has_url(JUDGE, {"SMOLSUM_READER_URL": LOCAL, "OPENAI_API_KEY": "k"})


def test_a_key_that_a_server_repeats_is_not_shown() -> None:
    """Neither in the error for a refused key, nor where an answer cannot be read or a question is declined."""
    echo = f"{'x' * 100} invalid key s3cret-of-mine, sent as Bearer s3cret-of-mine"
    replies = [failure(401, echo), failure(400, echo), (200, {}, echo.encode()), answer("", note="s3cret-of-mine")]
    for reply in replies:
        with serving(mischief=lambda prompt, before, reply=reply: reply) as server:
            endpoint = Endpoint(server.url, "judge-a", "s3cret-of-mine")

            async def ask(endpoint: Endpoint = endpoint) -> None:
                async with ChatClient(endpoint, connections=1) as client:
                    await client.ask(Call("?", None, lambda found: found))

            with pytest.raises((UsageError, Declined, BadAnswer)) as caught:
                asyncio.run(ask())
        assert "s3cret" not in str(caught.value)
        assert "s3cret" not in repr(endpoint)
