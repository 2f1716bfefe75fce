"""A reference behind a server, which gives the log-probabilities of tokens by their ids."""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from strop.batch.batch import Batch
from strop.engines.completions import RETRIES
from strop.engines.completions_client import PLAIN, Client
from strop.support.errors import RunStopped, UserError
from strop.support.http import Call, Failed, key_of

AT_ONCE = 16  # sequences that are requested in parallel
TIMEOUT_SECONDS = 600.0


def is_served(name: str) -> bool:
    """Whether this names a server, in place of a folder or a model's name."""
    return name.startswith(("http://", "https://"))


class ServedReference:
    """The log-probabilities of tokens under a server's model, as in vLLM's `prompt_logprobs`.

    The server gives them at temperature 1, and for the drawn tokens alone.
    """

    def __init__(self, url: str, tokenizer: Any, api_key_env: str = "") -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        key = key_of(api_key_env, "model.reference_api_key_env")
        self.client = Client(self.url, key, TIMEOUT_SECONDS, logprobs=False)
        self.limit = self.client.meet("", len(tokenizer))
        self._check_tokens(tokenizer)
        try:
            self._ask(range(3))
        except Failed as failed:
            raise UserError(
                f"model.reference={url} gives no log-probabilities of a prompt's tokens: {failed}; "
                "serve the model with vLLM"
            ) from failed

    def columns(self, batch: Batch, names: Sequence[str], temperature: float) -> dict[str, Tensor]:
        """logp_T [T] of every policy token, 0 elsewhere. Raises UserError for other columns, and
        RunStopped where the server does not answer for a rollout.
        """
        if tuple(names) != ("logp_T",) or temperature != 1:
            raise UserError(
                f"the reference at {self.url} gives log-probabilities of drawn tokens at "
                f"temperature 1, but {', '.join(names)} at {temperature:g} is needed: name a folder"
            )
        key_T, num = batch.contexts()
        sizes = torch.bincount(key_T, minlength=num).tolist()
        ids = [each.tolist() for each in torch.split(batch["id_T"].cpu(), sizes)]
        calls = [Call() for _ in ids]
        with ThreadPoolExecutor(AT_ONCE) as threads:
            try:
                found = list(threads.map(self._of_row, range(num), ids, calls))
            finally:  # after an error and an interrupt nobody waits for the others
                for call in calls:
                    call.cancel()
        logp_T = torch.tensor([x for row in found for x in row], device=batch["id_T"].device)
        return {"logp_T": torch.where(batch["mask_T"], logp_T, 0.0)}

    def _of_row(self, row: int, ids: list[int], call: Call) -> list[float]:
        try:
            return RETRIES(lambda: self._ask(ids, call), call.over.wait)
        except Failed as failed:
            raise RunStopped(
                f"the reference at {self.url} does not score rollout {row}, of {len(ids)} tokens: "
                f"{failed}"
            ) from failed

    def _ask(self, ids: Sequence[int], call: Call | None = None) -> list[float]:
        """The log-probability of every token given those before it; 0 for the first one."""
        if self.limit is not None and len(ids) >= self.limit:
            raise Failed(f"its context has {self.limit} tokens, one of them for an answer")
        body = {**PLAIN, "model": self.client.model, "prompt": list(ids), "max_tokens": 1,
                "prompt_logprobs": 0}  # fmt: skip
        reply = self.client.call("/v1/completions", body, call)
        try:
            logprobs = reply["choices"][0]["prompt_logprobs"][1:]
            found = [
                float(each[str(id)]["logprob"]) for id, each in zip(ids[1:], logprobs, strict=True)
            ]
        except (LookupError, TypeError, ValueError) as error:
            reply = json.dumps(reply)[:200]
            raise Failed(f"no prompt_logprobs of these tokens: {reply}") from error
        return [0.0, *found]

    def _check_tokens(self, tokenizer: Any) -> None:
        """Raise UserError where the server tokenises a text differently, if it can tokenise one."""
        text = tokenizer.decode(range(0, len(tokenizer), max(1, len(tokenizer) // 64)),
                                skip_special_tokens=True)  # fmt: skip
        body = {"model": self.client.model, "prompt": text, "add_special_tokens": False}
        try:
            reply = self.client.call("/tokenize", body)
        except Failed as failed:
            if failed.status in (404, 405):  # the server has no such route
                return
            raise UserError(f"the reference at {self.url}: {failed}") from failed
        if reply.get("tokens") != tokenizer(text, add_special_tokens=False)["input_ids"]:
            raise UserError(
                f"model.reference={self.url} has other tokens than the policy: probabilities of "
                "tokens can be compared between models of one tokenizer alone"
            )
