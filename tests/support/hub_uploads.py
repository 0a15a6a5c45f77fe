"""The hub's routes for uploads: repositories, branches, files small and large, and commits that are all or nothing."""

import base64
import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

import yaml

LARGE = 100_000
"""bytes from which a file goes to the large-file store"""


@dataclass
class Uploads:
    """What may be written to a hub: `tokens` has the owner that each token may write as."""

    root: Path
    tokens: Mapping[str, str]
    stored: dict[str, bytes] = field(default_factory=dict)
    """large files by SHA-256"""
    private: dict[str, bool] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    """of all commits"""
    fails: str = ""
    """a part of the paths whose requests the hub fails to answer"""
    failure: HTTPStatus = HTTPStatus.INTERNAL_SERVER_ERROR
    """what it answers them"""


class RefusedError(Exception):
    """An answer that is no success: a status, the message that the hub gives, and other fields."""

    def __init__(self, status: HTTPStatus, message: str, **more: Any) -> None:
        super().__init__(status, message)
        self.status, self.message, self.more = status, message, more


def answer(hub: Any, method: str, parts: list[str], headers: Mapping[str, str], body: bytes) -> Any:
    """Return the answer to a request of an upload as JSON; None for any other request. Raises RefusedError."""
    uploads: Uploads = hub.uploads
    path = "/".join(parts)
    if uploads.fails and uploads.fails in path:
        raise RefusedError(uploads.failure, "the disk of the hub is full")
    if method == "PUT" and parts[0] == "lfs-store":
        assert hashlib.sha256(body).hexdigest() == parts[1], "not the file that was announced"
        uploads.stored[parts[1]] = body
        return {}
    if method != "POST":
        return None
    if path == "api/validate-yaml":
        return _validated(json.loads(body)["content"])
    written = parts[4] if parts[0] == "api" and len(parts) > 4 else ""
    writes = path == "api/repos/create" or written in ("preupload", "commit", "branch")
    if not writes and not path.endswith("info/lfs/objects/batch"):
        return None
    owner = uploads.tokens.get(headers.get("authorization", "").removeprefix("Bearer "))
    if owner is None:
        raise RefusedError(HTTPStatus.UNAUTHORIZED, "Invalid username or password.")
    if path == "api/repos/create":
        return _create(hub, owner, json.loads(body))
    if path.endswith("info/lfs/objects/batch"):
        objects = json.loads(body)["objects"]
        return {"transfer": "basic", "objects": [_place(hub.url, uploads, one) for one in objects]}
    key, action, branch = "/".join(parts[1:4]), parts[4], parts[5]
    if key.split("/")[1] != owner:
        raise RefusedError(HTTPStatus.FORBIDDEN, f"You don't have the rights to write to {key}")
    if action == "branch":
        return _branch(hub, key, branch)
    folder = hub.revisions.get(key, {}).get(branch, hub.repositories[key] if branch == "main" else None)
    if folder is None:
        raise RefusedError(HTTPStatus.NOT_FOUND, f"Invalid rev id: {branch}")
    if action == "preupload":
        return {"files": [_mode(one) for one in json.loads(body)["files"]]}
    return _commit(hub, folder, [json.loads(line) for line in body.splitlines()])


def _create(hub: Any, owner: str, asked: Mapping[str, Any]) -> Any:
    key = f"models/{asked.get('organization') or owner}/{asked['name']}"
    if key.split("/")[1] != owner:
        raise RefusedError(
            HTTPStatus.FORBIDDEN, f"You don't have the rights to create a model under {key.split('/')[1]}"
        )
    if key in hub.repositories:
        raise RefusedError(HTTPStatus.CONFLICT, "You already created this model repo", url=f"{hub.url}/{key[7:]}")
    folder = hub.uploads.root / key
    folder.mkdir(parents=True)
    (folder / ".gitattributes").write_text("*.safetensors filter=lfs diff=lfs merge=lfs -text\n")
    hub.repositories[key] = folder
    hub.uploads.private[key] = bool(asked.get("private") or asked.get("visibility") == "private")
    return {"url": f"{hub.url}/{key.removeprefix('models/')}"}


def _branch(hub: Any, key: str, branch: str) -> Any:
    known = hub.revisions.setdefault(key, {})
    if branch in known or branch == "main":
        raise RefusedError(HTTPStatus.CONFLICT, "Reference already exists")
    known[branch] = Path(shutil.copytree(hub.repositories[key], hub.uploads.root / "branches" / key / branch))
    return {}


def _mode(file: Mapping[str, Any]) -> dict[str, Any]:
    large = file["size"] > LARGE or file["path"].endswith(".safetensors")
    return {"path": file["path"], "uploadMode": "lfs" if large else "regular", "shouldIgnore": False, "oid": None}


def _place(url: str, uploads: Uploads, file: Mapping[str, Any]) -> dict[str, Any]:
    if file["oid"] in uploads.stored:
        return dict(file)
    return {**file, "actions": {"upload": {"href": f"{url}/lfs-store/{file['oid']}"}}}


def _commit(hub: Any, folder: Path, lines: list[dict[str, Any]]) -> Any:
    changed = Path(shutil.copytree(folder, hub.uploads.root / "next", dirs_exist_ok=False))
    try:
        for line in lines:
            _apply(hub.uploads, changed, line["key"], line["value"])
        shutil.rmtree(folder)
        changed.rename(folder)
    finally:
        shutil.rmtree(changed, ignore_errors=True)
    return {"success": True, "commitOid": "0" * 40, "commitUrl": f"{hub.url}/commit"}


def _apply(uploads: Uploads, folder: Path, kind: str, value: Mapping[str, Any]) -> None:
    if kind == "header":
        uploads.messages.append(value["summary"])
        return
    path = folder / value["path"]
    if kind == "deletedFile":
        path.unlink()
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "file":
        path.write_bytes(base64.b64decode(value["content"]))
    elif kind == "lfsFile":
        if value["oid"] not in uploads.stored:
            raise RefusedError(HTTPStatus.BAD_REQUEST, "LFS pointer pointed to a file that does not exist")
        path.write_bytes(uploads.stored[value["oid"]])
    else:
        raise RefusedError(HTTPStatus.BAD_REQUEST, f"unknown operation {kind}")


def _validated(card: str) -> Any:
    """The hub's check of a card's metadata, as far as it can refuse one; a card without metadata gets a warning."""
    _, opening, rest = card.partition("---\n")
    if not opening:
        return {"errors": [], "warnings": [{"message": "empty or missing yaml metadata in repo card"}]}
    problems = []
    try:
        metadata = yaml.safe_load(rest.partition("\n---")[0])
    except yaml.YAMLError as error:
        problems.append({"message": str(error)})
    else:
        if not isinstance(metadata, dict):
            problems.append({"message": "metadata is no mapping"})
        elif not isinstance(metadata.get("license", ""), str):
            problems.append({"message": '"license" must be a string'})
    if problems:
        raise RefusedError(HTTPStatus.BAD_REQUEST, "Invalid metadata", errors=problems, warnings=[])
    return {"errors": [], "warnings": []}
