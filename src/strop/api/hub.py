"""Sends a model's folder to the Hugging Face hub, or to another server with the same API."""

import os
from pathlib import Path
from typing import Any

from strop.support.errors import UserError, first_line

NO_TOKEN = (
    "the hub takes a model only with a token: log in with `hf auth login`, or set HF_TOKEN (one "
    "that may write, of huggingface.co/settings/tokens)"
)


def check_name(name: str) -> None:
    """Raise UserError for a name that no model on a hub can have."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise UserError(f"{name!r} is no name on the hub, such as USER/MODEL: {error}") from error


def check_token() -> None:
    """Raise UserError where nobody is logged in."""
    from huggingface_hub import get_token

    if not get_token():
        raise UserError(NO_TOKEN)


def listing(folder: Path) -> list[tuple[str, int]]:
    """The files that would be sent, with their bytes."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [(path.relative_to(folder).as_posix(), path.stat().st_size) for path in files]


def send(folder: Path, name: str, private: bool = False) -> str:
    """Send all files of the folder as one commit; an existing model gets a new version.

    The server is that of HF_ENDPOINT. Returns the commit's URL. Raises UserError.
    """
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.errors import HfHubHTTPError, HTTPError

    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None)
    files = [
        CommitOperationAdd(path_in_repo=path, path_or_fileobj=str(folder / path))
        for path, _ in listing(folder)
    ]
    again = f"the model is in {folder}: send it with `hf upload {name} {folder}`"
    try:
        api.create_repo(name, private=private or None, exist_ok=True)
        sent: Any = api.create_commit(name, files, commit_message="A model that strop trained")
    except (HfHubHTTPError, HTTPError, OSError, ValueError) as error:
        refused = isinstance(error, HfHubHTTPError)  # else there is no network, or offline mode
        what = f"refuses {name}" if refused else "cannot be reached"
        why = first_line(error).rstrip(".")
        raise UserError(f"{api.endpoint} {what}: {why}; {again}") from error
    return str(sent.commit_url)
