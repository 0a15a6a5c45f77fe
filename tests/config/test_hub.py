"""Names on the hub, taken apart and put together again."""

import pytest

from smolsum.config.hub import HubName, download_command, hub_name


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("Qwen/Qwen2.5-0.5B", ("Qwen/Qwen2.5-0.5B", "", "")),
        ("abisee/cnn_dailymail:3.0.0", ("abisee/cnn_dailymail", "3.0.0", "")),
        ("abisee/cnn_dailymail:3.0.0@v1", ("abisee/cnn_dailymail", "3.0.0", "v1")),
        ("ann/posts@refs/pr/3", ("ann/posts", "", "refs/pr/3")),
        ("ann/posts:plain text@0123abc", ("ann/posts", "plain text", "0123abc")),
    ],
)
def test_parts(text: str, parts: tuple[str, str, str]) -> None:
    """Owner and name, then a configuration, then a revision."""
    found = hub_name(text)
    assert found == HubName(*parts)
    assert str(found) == text


@pytest.mark.parametrize(
    "text",
    [
        *("", "posts", "cnn_dailymail:3.0.0", "builtin:tiny", "./ann/posts@v1", "/ann/posts", "a/b/c"),
        *("ann/posts@", "ann/posts:", "ann/posts:a:b", "a/b@v 1"),
    ],
)
def test_other_texts(text: str) -> None:
    """Paths, plain words and names with an empty part are not names on the hub."""
    assert hub_name(text) is None


@pytest.mark.parametrize(("text", "command"), [("a/b", "hf download a/b"), ("a/b@v1", "hf download a/b --revision v1")])
def test_download_command(text: str, command: str) -> None:
    """The hub's own tool takes the revision apart from the name."""
    assert download_command(text) == command
