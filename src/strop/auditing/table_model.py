"""A policy that is a table of logits, in the form in which the trainer takes models."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from strop.auditing.tree import Tree


class TableModel(nn.Module):
    """Logits theta [A, P * N]: one free number for every action at every node.

    The hidden state before a token is the one-hot of its node, the head's weight is theta; so the
    gradient of the weights is that of the logits, exactly.
    """

    def __init__(self, tree: Tree, theta: Tensor) -> None:
        super().__init__()
        self.config = SimpleNamespace(vocab_size=tree.branching)
        self.trunk = Trunk(tree)
        self.head = nn.Linear(theta.shape[1], tree.branching, bias=False, dtype=torch.float64)
        self.head.weight.data.copy_(theta)

    @property
    def theta(self) -> Tensor:
        """The logits."""
        return self.head.weight

    def get_decoder(self) -> nn.Module:
        """What makes hidden states."""
        return self.trunk

    def get_output_embeddings(self) -> nn.Module:
        """The head."""
        return self.head


class Trunk(nn.Module):
    """Token ids [B, L] to one-hot nodes [B, L, P * N]; after an answer's end, and before the end of
    the prompt, the state is 0.
    """

    def __init__(self, tree: Tree) -> None:
        super().__init__()
        self.tree = tree

    def forward(self, input_ids: Tensor, **_: Any) -> SimpleNamespace:
        """The states, as `last_hidden_state`."""
        tree, first = self.tree, self.tree.prompt_length
        num_rows, length = input_ids.shape
        width = tree.num_prompts * tree.num_nodes
        states = torch.zeros(num_rows, length, width, dtype=torch.float64)
        prompt = torch.zeros(num_rows, dtype=torch.int64)
        for at in range(first):
            prompt = prompt * tree.branching + input_ids[:, at]
        inner = torch.zeros(num_rows, dtype=torch.int64)
        for at in range(first - 1, length):
            if at >= first:
                inner = inner * tree.branching + 1 + input_ids[:, at]
            there = (inner < tree.num_nodes) & (prompt < tree.num_prompts)
            node = torch.where(there, prompt * tree.num_nodes + inner, 0)
            states[torch.arange(num_rows), at, node] = there.double()
        return SimpleNamespace(last_hidden_state=states)
