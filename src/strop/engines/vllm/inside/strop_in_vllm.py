"""Extends vLLM's workers: they can load new weights from a folder while the server runs.

vLLM imports this in its own environment (--worker-extension-cls strop_in_vllm.Weights), which need
not have strop: it uses nothing but vLLM. /collective_rpc calls the methods.
"""

import os
from typing import Any


class Weights:
    """Becomes part of vLLM's worker class."""

    strop_version = 0  # of the sampling weights; 0: those it was started with

    def strop_weights(self) -> dict[str, Any]:
        """The version that it samples with, whether it applies the rules of requests, and the
        largest rank of adapters that it has room for.
        """
        config = self.model_config  # type: ignore[attr-defined]
        rules = any(str(each).endswith(":Rules") for each in config.logits_processors or ())
        lora = self.vllm_config.lora_config  # type: ignore[attr-defined]
        rank = 0 if lora is None else lora.max_lora_rank
        return {"version": self.strop_version, "rules": rules, "rank": rank}

    def strop_load_weights(self, folder: str, version: int) -> dict[str, Any]:
        """Load the weights of a folder in Hugging Face's layout; returns the version.

        For a missing folder it returns an error and changes nothing. A later failure ends the
        worker: it never samples with half of the new weights.
        """
        if not os.path.isfile(os.path.join(folder, "config.json")):
            return {"error": f"it sees no folder {folder}"}
        self.reload_weights(weights_path=folder)  # type: ignore[attr-defined]
        _pack_again(self.model_runner.get_model())  # type: ignore[attr-defined]
        self.strop_version = version
        return {"version": version}


def _pack_again(model: Any) -> None:
    """Repack weights on a CPU, where vLLM multiplies by packed copies: 0.32 renews those of the
    layers that it loads, but not a head that is tied to the embeddings.
    """
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if hasattr(module, "cpu_linear") and weight is not None and weight.numel():
            module.quant_method.process_weights_after_loading(module)
