"""The rows of a split of a hub data set, and the commit that they were read from.

`datasets` falls back on whatever it last cached of a data set where the hub does not answer, whichever revision was
asked for. So the commit is checked after loading, and a process reads all splits of a data set from one commit.
"""

import os
import re
import sys
from collections.abc import Collection, Iterator
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from smolsum.config.hub import HubName, silence_hub_client
from smolsum.errors import SmolsumError, UnreachableError, UsageError
from smolsum.tasks.data_files import BATCH, LAYOUT, ReadRow, nearest_name

if TYPE_CHECKING:
    from datasets import DatasetBuilder

COMMIT = re.compile("[0-9a-f]{40}")
_commits: dict[str, str] = {}
"""by the name of a data set in the settings: the commit that this process read"""


class HubSource:
    """The splits of a data set on the hub, of one commit."""

    def __init__(self, data: HubName) -> None:
        self.data = data

    @property
    def splits(self) -> Collection[str]:
        """The names of the splits. Raises UsageError for a data set, configuration or revision that does not exist,
        UnreachableError for a hub that does not answer."""
        return set(self._builder.info.splits or ())

    def place(self, split: str) -> str:
        """Return the data set and the split."""
        return f"{self.data}, split {split!r}"

    def rows(self, split: str, setting: str, texts: Collection[str]) -> Iterator[ReadRow]:
        """Yield the rows of a split, which may be a slice. Raises what `splits` raises, and UsageError for a split that
        does not exist."""
        import datasets

        try:
            # as Arrow, so that no column (an image, say) is decoded
            rows = self._builder.as_dataset(split=split).with_format("arrow")
            batches = (table.to_pylist() for table in rows.iter(BATCH))
            for number, row in enumerate(chain.from_iterable(batches), start=1):
                yield f"{self.data}, split {split!r}, row {number}", row
        except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
            raise _hub_error(error, self.data, setting) from error
        if not len(rows):
            raise UsageError(f"split {split!r} of hub data set '{self.data}' is empty", hint=f"--set {setting}=NAME")

    @cached_property
    def _builder(self) -> "DatasetBuilder":
        """What reads the data, which are on this disk once this returns."""
        import datasets  # takes seconds, and only hub ids need it
        from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined] # root of its HTTP client's

        silence_hub_client()
        # where a user has set the variable, the library would only warn about this
        if not sys.stderr.isatty() and "HF_DATASETS_DISABLE_PROGRESS_BARS" not in os.environ:
            datasets.disable_progress_bars()
        data = self.data
        revision = _commits.get(str(data), data.revision) or None
        try:
            builder = datasets.load_dataset_builder(data.id, name=data.configuration or None, revision=revision)
            builder = _at(builder, data, revision)
            builder.download_and_prepare()
        except (OSError, ValueError, RuntimeError, HTTPError, datasets.exceptions.DatasetsError) as error:
            raise _hub_error(error, data, "data.path") from error
        if COMMIT.fullmatch(builder.hash or ""):
            _commits[str(data)] = builder.hash
        return builder


def commit_of(path: str) -> str:
    """Return the commit that this process read the hub data set at `path` from; empty for data from elsewhere."""
    return _commits.get(path, "")


def _at(builder: "DatasetBuilder", data: HubName, revision: str | None) -> "DatasetBuilder":
    """Return a builder of the revision that was asked for. Raises UnreachableError where the hub did not answer and the
    cache holds other revisions only."""
    from huggingface_hub import try_to_load_from_cache

    if revision is None or builder.name != "cache":  # the builder that stands in where the hub does not answer
        return builder
    page = try_to_load_from_cache(data.id, "README.md", revision=revision, repo_type="dataset")
    commit = Path(page).parent.name if isinstance(page, str) else revision
    if builder.hash == commit:
        return builder
    if COMMIT.fullmatch(commit) and Path(builder.cache_dir).with_name(commit).is_dir():
        return type(builder)(
            repo_id=data.id,
            dataset_name=builder.dataset_name,
            config_name=builder.config.name,
            version=str(builder.config.version),
            hash=commit,
        )
    there = HubName(data.id, data.configuration, builder.hash)
    raise UnreachableError(
        f"the hub did not answer for revision {revision!r} of data set {data.id!r}, and the cache holds another one",
        hint=f"try again later, or take what the cache holds: --set data.path={there}",
    )


def _configuration_error(error: ValueError, data: HubName) -> UsageError:
    """Return the error for a configuration that is missing or does not exist, with those that the library lists."""
    known = re.findall(r"'([^']+)'", str(error).rpartition("[")[2].partition("]")[0])
    has = f"no configuration {data.configuration!r}, only" if data.configuration else "several configurations:"
    near = HubName(data.id, nearest_name(data.configuration, known) or [*known, "NAME"][0], data.revision)
    return UsageError(f"hub data set {data.id!r} has {has} {', '.join(known)}", hint=f"--set data.path={near}")


def _hub_error(error: Exception, data: HubName, setting: str) -> SmolsumError:
    """Return the error of loading from the hub, by its cause: the request, this disk or the hub."""
    from datasets import config, data_files, exceptions

    what = f"hub data set '{data}'"
    cause = error.__cause__ if isinstance(error, exceptions.DatasetGenerationError) else error
    reason = (str(cause) or type(cause).__name__).splitlines()[0].rstrip(".")
    at = f" --revision {data.revision}" if data.revision else ""
    download = f"hf download {data.id} --repo-type dataset{at} --local-dir DIR"
    folder = f"DIR/{data.configuration}" if data.configuration else "DIR"
    # what huggingface_hub 1 says after its first try failed: it tries again on the client that it closed
    closed = isinstance(error, RuntimeError) and "client has been closed" in reason
    if isinstance(error, exceptions.DatasetNotFoundError) and reason.startswith("Revision"):
        return UsageError(
            f"hub data set {data.id!r} has no revision {data.revision!r}",
            hint=f"--set data.path={HubName(data.id, data.configuration)}, perhaps with @ and a branch, tag or commit",
        )
    if isinstance(error, exceptions.DatasetNotFoundError):
        return UsageError(
            f"{what} does not exist, or you have no access: {reason}",
            hint=f"check the name, or hf auth login; for a directory --set data.path=./{data}",
        )
    if isinstance(cause, OSError) and cause.errno and not isinstance(cause, ConnectionError | TimeoutError):
        return SmolsumError(
            f"{what} cannot be kept on this disk: {reason}",
            hint="set HF_HOME to a directory that can be written and has room",
        )
    uncached = type(error) is ValueError and reason.startswith(("Couldn't find cache", "There are multiple"))
    if type(error) is ValueError and not uncached:  # the library's own refusal
        if reason.startswith(("Config name is missing", "BuilderConfig")):
            return _configuration_error(error, data)
        return UsageError(f"{what}: {reason}", hint=f"--set {setting}=NAME")  # of the split's name, as a rule
    unreadable = exceptions.DatasetsError | data_files.EmptyDatasetError | RuntimeError | ValueError
    if isinstance(error, unreadable) and not closed and not uncached:
        return UsageError(f"{what} cannot be read: {reason}", hint=f"{download}, then make it {LAYOUT}")
    if config.HF_HUB_OFFLINE:
        return UnreachableError(
            f"{what} is not in the cache, and HF_HUB_OFFLINE forbids a download",
            hint=f"unset HF_HUB_OFFLINE, or {download} elsewhere and --set data.path={folder}",
        )
    vague = closed or reason.startswith("Couldn't find")  # the connection failed, and the libraries do not say why
    why = (_connection_problem() if vague else "") or ("the connection failed" if closed else reason)
    return UnreachableError(
        f"the hub did not answer for data set '{data}': {why}",
        hint=f"try again later, or {download} elsewhere and --set data.path={folder}",
    )


def _connection_problem() -> str:
    """Return why the hub cannot be reached, by one more connection; empty if it can."""
    import httpx
    from datasets import config

    try:
        httpx.head(config.HF_ENDPOINT, timeout=5.0)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return str(error) or type(error).__name__
    return ""
