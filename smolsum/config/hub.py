"""Names of models and data sets on the Hugging Face hub, as settings have them: OWNER/NAME[:CONFIGURATION][@REVISION].

A configuration is a part of a data set that has several, such as `3.0.0` of `abisee/cnn_dailymail`. A revision is a
branch, a tag or a commit. The names without an owner that the hub's first data sets had are refused by its libraries.
"""

import logging
import os
import re
import sys
from dataclasses import dataclass

FORM = "OWNER/NAME[:CONFIGURATION][@REVISION]"
_WORD = r"\w[\w.-]*"
_NAME = re.compile(
    rf"(?P<id>{_WORD}/{_WORD})(?::(?P<configuration>[^:@/]+))?(?:@(?P<revision>{_WORD}(?:/{_WORD})*))?", re.ASCII
)


@dataclass(frozen=True)
class HubName:
    """A name taken apart; what it leaves out is empty."""

    id: str
    configuration: str = ""
    revision: str = ""

    def __str__(self) -> str:
        """Return the name as settings have it."""
        configuration, revision = self.configuration, self.revision
        return f"{self.id}{configuration and f':{configuration}'}{revision and f'@{revision}'}"


def download_command(text: str) -> str:
    """Return the command that brings the model of this name onto this machine."""
    name = hub_name(text)
    at = f" --revision {name.revision}" if name and name.revision else ""
    return f"hf download {name.id if name else text}{at}"


def hub_name(text: str) -> HubName | None:
    """Return the parts of a name, None for a text that is not one."""
    match = _NAME.fullmatch(text)
    return HubName(**{key: value or "" for key, value in match.groupdict().items()}) if match else None


def silence_hub_client() -> None:
    """Keep the hub's client from printing its warnings, and its progress bars where stderr is no terminal. Errors name
    what went wrong. A user's own HF_HUB_VERBOSITY and HF_HUB_DISABLE_PROGRESS_BARS are left as they are."""
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if not sys.stderr.isatty() and "HF_HUB_DISABLE_PROGRESS_BARS" not in os.environ:
        disable_progress_bars()
    if "HF_HUB_VERBOSITY" not in os.environ:
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
