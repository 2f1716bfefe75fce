"""What strop adds to vLLM's workers: new weights from a folder, while the server runs.

vLLM imports this in its own environment (--worker-extension-cls strop_in_vllm.Weights), where strop
need not be: it uses nothing but vLLM. /collective_rpc calls the methods.
"""

import os
from typing import Any


class Weights:
    """Becomes part of vLLM's worker class."""

    strop_version = 0  # of the weights that it samples with; 0: those it was started with

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
        """Take the weights of a folder in Hugging Face's layout; what is answered is the version.

        A folder that is not there is answered with an error, and nothing has changed. A failure on
        the way ends the worker: it never samples with half of the new weights.
        """
        if not os.path.isfile(os.path.join(folder, "config.json")):
            return {"error": f"it sees no folder {folder}"}
        self.reload_weights(weights_path=folder)  # type: ignore[attr-defined]
        _pack_again(self.model_runner.get_model())  # type: ignore[attr-defined]
        self.strop_version = version
        return {"version": version}


def _pack_again(model: Any) -> None:
    """On a CPU vLLM multiplies by packed copies of the weights, and 0.32 renews those of the layers
    that it loads. A head tied to the embeddings is none of them.
    """
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if hasattr(module, "cpu_linear") and weight is not None and weight.numel():
            module.quant_method.process_weights_after_loading(module)
