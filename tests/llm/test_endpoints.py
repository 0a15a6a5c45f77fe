"""Which server a role's model is asked at, and which key goes there."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.refusals import refuses

from smolsum.errors import UsageError
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
        (JUDGE, {}, "OPENAI_API_KEY is not set"),
        *((JUDGE, {"OPENAI_API_KEY": key}, "OPENAI_API_KEY holds a character")
          for key in ("s3cret\ntwo", "s3cr\u00e9t", "s3cret\x1bb", "s3cret one")),
        *((JUDGE, {"OPENAI_BASE_URL": url}, "OPENAI_BASE_URL")
          for url in ("localhost:80", "http://", "ftp://me:s3cret@h/v1", "http://me:s3cret@")),
    ],
)  # fmt: skip
def test_what_is_unclear_is_refused(role: EndpointRole, environ: dict[str, str], named: str) -> None:
    """Before anything is sent, with the variable to set and without the key."""
    own = f"SMOLSUM_{role.prefix}_" if any(name.startswith("SMOLSUM") for name in environ) else "OPENAI_"
    with refuses(named, f"export {own}") as refused:
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


def test_a_name_means_a_model_at_its_address() -> None:
    """Except at OpenAI; neither a key nor a password in a URL is shown."""
    assert find_endpoint("m", {"OPENAI_BASE_URL": "http://localhost:1/v1/"}).url == "http://localhost:1/v1"
    assert "s3cret" not in repr(find_endpoint("m", {"OPENAI_API_KEY": "s3cret"}))
    assert Endpoint(OPENAI, "m").name == "m"
    assert Endpoint("http://me:s3cret@h/v1?key=x", "m").name == "m at http://h/v1"
