"""Features of prompts, trained to predict a policy's success: queries over an embedder's states.

An adapter's file names the embedder that it was trained with.
"""

import functools
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from strop.assets import SHIPPED, model_folder
from strop.support.errors import UserError, first_line

# The states [tokens, D] of a text.
Embed = Callable[[str], Tensor]


@dataclass(frozen=True)
class Sizes:
    """Sizes of an adapter over states of width `states`; the defaults are the released code's."""

    states: int
    queries: int = 168
    width: int = 6
    heads: int = 3
    bottleneck: int = 128
    dropout: float = 0.2


class QueryAdapter(nn.Module):
    """States [tokens, D] of a text -> features [queries * width].

    Q = Q_static + G(h of the last token), G: linear, LayerNorm, GELU, dropout, linear from 0
    features = attention of norm(Q) over keys norm(W h + b) and values W h + b, side by side
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        width = sizes.width
        self.static = nn.Parameter(torch.randn(sizes.queries, width))
        self.shift = nn.Sequential(
            nn.Linear(sizes.states, sizes.bottleneck), nn.LayerNorm(sizes.bottleneck), nn.GELU(),
            nn.Dropout(sizes.dropout), nn.Linear(sizes.bottleneck, sizes.queries * width),
        )  # fmt: skip
        for weight in self.shift[-1].parameters():
            nn.init.zeros_(weight)
        self.project = nn.Linear(sizes.states, width)
        self.attend = nn.MultiheadAttention(width, sizes.heads, batch_first=True)
        self.norm_query, self.norm_key = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, state_TD: Tensor) -> Tensor:
        query_QW = self.static + self.shift(state_TD[-1]).view_as(self.static)
        value_TW = self.project(state_TD)
        attended, _ = self.attend(
            self.norm_query(query_QW)[None], self.norm_key(value_TW)[None], value_TW[None]
        )
        flat_F: Tensor = attended.flatten()
        return flat_F


def pair_loss(logit_N: Tensor, outcome_N: Tensor, alpha: float) -> Tensor:
    """The training loss of an adapter; even rows are solved prompts, each before a failed one.

        alpha mean(-log sigmoid(s_solved - s_failed)) + (1 - alpha) CE,  s: log-odds of success
        CE = -mean(y log sigmoid(s) + (1 - y) log sigmoid(-s))

    Source: arXiv 2602.03584, code Now-Join-Us/V0 (loss type "combined").
    """
    rank = -logsigmoid(logit_N[0::2] - logit_N[1::2]).mean()
    log_likelihood_N = outcome_N * logsigmoid(logit_N) + (1 - outcome_N) * logsigmoid(-logit_N)
    return alpha * rank - (1 - alpha) * log_likelihood_N.mean()


def by_kernel(
    history_NF: Tensor, success_N: Tensor, feature_MF: Tensor, bandwidth: float, weight: float
) -> Tensor:
    """Success [M] expected of other prompts, given a history; all features have length 1.

    (weight m + sum_j k_j y_j) / (weight + sum_j k_j), k = exp((cosine - 1) / bandwidth), m = mean y
    """
    mean = success_N.double().mean() if success_N.numel() else torch.tensor(0.5).double()
    kernel_MN = ((feature_MF @ history_NF.T - 1) / bandwidth).exp().double()
    total_M = weight * mean + kernel_MN @ success_N.double()
    found_M: Tensor = total_M / (weight + kernel_MN.sum(-1))
    return found_M


def embedder(name: str) -> Embed:
    """The last hidden states of a frozen transformers model, from a folder or a name.

    Raises UserError if it cannot be loaded.
    """
    from transformers import AutoModel, AutoTokenizer

    place = str(model_folder(name)) if name in SHIPPED else name
    try:
        tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=False)
        model = AutoModel.from_pretrained(
            place, trust_remote_code=False, dtype=torch.float32
        ).eval()
    except Exception as error:  # of any type, for files that are damaged or not there
        raise UserError(f"the embedder {name} cannot be loaded: {first_line(error)}") from error

    @torch.no_grad()
    def embed(text: str) -> Tensor:
        ids = tokenizer(text, return_tensors="pt", truncation=True)["input_ids"]
        states: Tensor = model(input_ids=ids).last_hidden_state[0]
        return states

    return embed


def save(adapter: QueryAdapter, over: str, path: Path) -> None:
    """Write an adapter over the embedder of this name."""
    about = {"embedder": over, "sizes": json.dumps(asdict(adapter.sizes))}
    save_file({n: w.contiguous() for n, w in adapter.state_dict().items()}, path, metadata=about)


@dataclass(frozen=True)
class Features:
    """Features of a text [width], of length 1, by an adapter over its embedder."""

    embed: Embed
    adapter: QueryAdapter

    @property
    def width(self) -> int:
        """The number of features of a text."""
        return self.adapter.static.numel()

    @torch.no_grad()
    def __call__(self, text: str) -> Tensor:
        feature_F = self.adapter(self.embed(text))
        unit_F: Tensor = feature_F / feature_F.norm()
        return unit_F


def read(path: str) -> Features:
    """The features of an adapter's file. Raises UserError."""
    file = Path(path)
    return _read(path, file.stat().st_mtime_ns if file.exists() else 0)


@functools.lru_cache(maxsize=4)
def _read(path: str, changed: int) -> Features:
    """Reads the file once for each change of it."""
    try:
        with safe_open(path, framework="pt") as file:
            about: dict[str, Any] = file.metadata()
            adapter = QueryAdapter(Sizes(**json.loads(about["sizes"])))
            adapter.load_state_dict({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    except Exception as error:  # of any type, as above
        raise UserError(f"the adapter {path} cannot be read: {error}") from error
    return Features(embedder(about["embedder"]), adapter.eval())
