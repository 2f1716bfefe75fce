"""Checks whether the Hugging Face hub has a model or a data set, with one short request.

The download libraries request file after file, each with many retries, so that they report a
misspelt name or a missing network only minutes later.
"""

import os
from collections.abc import Sequence

from strop.assets import SHIPPED
from strop.support.errors import UserError, did_you_mean, first_line

REACH_SECONDS = 10.0


def only_cached(
    name: str,
    file: str = "config.json",
    what: str = "model",
    shipped: Sequence[str] = tuple(SHIPPED),
) -> bool:
    """Whether a model of the hub can only be read from the cache, which has this file of it.

    what, shipped: for the message, the kind of model and those of this kind that ship with strop.

    Raises UserError for a model that neither cache nor hub has.
    """
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = isinstance(try_to_load_from_cache(name, file), str)
    except HFValidationError:  # reported below
        cached = False
    trouble = trouble_with(name, "model")
    if trouble and not cached:
        others = " or a name of the hub"
        if shipped:
            others = f", a name of the hub, or what ships with strop: {', '.join(shipped)}"
        raise UserError(
            f"no {what} {name!r}{did_you_mean(name, shipped)}: it is no folder, and {trouble}. "
            f"Give a folder{others}"
        )
    return bool(trouble)


def trouble_with(name: str, kind: str) -> str:
    """Why the hub does not give a `model` or `dataset`; empty where it does."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    hub = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None)
    try:
        hub.repo_info(name, repo_type=kind, timeout=REACH_SECONDS)
    except HFValidationError:
        return "no name of the hub, such as USER/NAME"
    except OfflineModeIsEnabled:
        return "not in the hub's cache here (HF_HOME), and HF_HUB_OFFLINE forbids to ask the hub"
    except GatedRepoError:
        return "the hub gives it to those alone who were let in on its page, with HF_TOKEN"
    except RepositoryNotFoundError:
        return "the hub has none of that name that it shows you (a private one needs HF_TOKEN)"
    except Exception as error:  # a network may fail in any way
        why = first_line(error).rstrip(".")
        return (
            f"not in the hub's cache here (HF_HOME), and {hub.endpoint} gives no answer ({why}): "
            "without a network, HF_HUB_OFFLINE=1 asks no more"
        )
    return ""
