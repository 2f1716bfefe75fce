"""Runs one training step on given groups of answers, with the trainer's code and a table policy."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from strop.auditing.tree import Tree, cut
from strop.batch.batch import Batch
from strop.batch.columns import is_value
from strop.catalogue.seams import SERVICES
from strop.engines.base import Event
from strop.method import part as parts
from strop.method.algorithm import Algorithm, around_refresh, wanted_columns
from strop.method.chains import Chains, generators, learnable
from strop.method.part import Curated, Draw
from strop.method.services import Graded
from strop.parts.rollout.base import Turn, assemble_turns, with_turns
from strop.parts.rollout.play_turns import PlayTurns
from strop.parts.rollout.sample_independently import SampleIndependently
from strop.support.errors import UserError
from strop.training.learner.policy import Policy
from strop.training.learner.step_models import StepModels, refresh
from strop.training.learner.update import Learner


class TableModel(nn.Module):
    """Logits theta [A, P * N]: one free number for every action at every node.

    The hidden state before a token is the one-hot vector of its node, and the head's weight is
    theta, so the gradient of the weights is exactly that of the logits.
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
        """The module that computes hidden states."""
        return self.trunk

    def get_output_embeddings(self) -> nn.Module:
        """The head."""
        return self.head


class Trunk(nn.Module):
    """Maps token ids [B, L] to one-hot nodes [B, L, P * N]; after an answer's end, and before the
    end of the prompt, the state is 0.
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


# For every prompt's group, the paths of its answers, as indices into Tree.paths.
Groups = Sequence[Sequence[int]]
Asked = tuple[int, ...]  # how many answers more curation asks for, by prompt
NOT_RUN = ("sampling", "rollout", "control")  # stages of a step
NUM_STEPS = 1000  # length of the run whose first step is audited


class Uncountable(UserError):
    """Raised for a method whose step is not determined by the drawn answers."""


@dataclass
class Watched:
    """The trainer's random generators; notices draws from them and from torch's global one."""

    seed: int
    made: list[tuple[torch.Generator, Tensor]] = field(default_factory=list)
    before: Tensor = field(default_factory=torch.get_rng_state)

    def __call__(self, label: str, update: int = 0) -> torch.Generator:
        """A fresh generator."""
        rng = generators(self.seed, 1)(label, update)
        self.made.append((rng, rng.get_state()))
        return rng

    @property
    def drawn(self) -> bool:
        """Whether the state of any generator has changed."""
        states = [(rng.get_state(), before) for rng, before in self.made]
        states.append((torch.get_rng_state(), self.before))
        return any(not torch.equal(*pair) for pair in states)


class TreeServices:
    """The services of an audit: rewards of the tree. `_check_services` refuses all others."""

    def __init__(self, tree: Tree) -> None:
        self.tree, self.reward_B = tree, torch.empty(0)

    @property
    def grading(self) -> "TreeServices":
        """These services themselves."""
        return self

    can_grade, reward_names, reward_weights = True, ("tree",), (1.0,)

    def grade(self, batch: Batch) -> Graded:
        """The rewards of the batch's answers."""
        reward_B = self.reward_B.float()
        good_B = torch.ones(len(reward_B), dtype=torch.bool)
        return Graded(reward_B[:, None], reward_B, good_B, {}, torch.zeros_like(batch["group_B"]))


@dataclass
class TrueCritic:
    """An exact critic: the expected reward from every node on, under the table policy."""

    tree: Tree
    theta: Tensor
    current: tuple[str, ...]

    def columns(self, batch: Batch, names: Sequence[str]) -> dict[str, Tensor]:
        """The value before every policy token, for every requested head."""
        value_N = self.tree.values_N(self.theta)
        state_T = node_of_tokens(self.tree, batch)
        values_T = torch.where(batch["mask_T"], value_N[state_T], 0.0)
        return dict.fromkeys(names, values_T)


def node_of_tokens(tree: Tree, batch: Batch) -> Tensor:
    """The node [T] before every policy token; 0 before others."""
    found = []
    ids = batch["id_T"].split(batch["size_B"].tolist())
    for prompt, tokens in zip(batch["uid_P"][batch["group_B"]].tolist(), ids, strict=True):
        path = tuple(tokens[tree.prompt_length :].tolist())
        found += [0] * tree.prompt_length
        found += [tree.node(prompt, path[:at]) for at in range(len(path))]
    return torch.tensor(found)


@dataclass
class Bench:
    """Runs stages 3 to 8 of a step of `algorithm` on given answers, and measures how far the logits
    moved.

    theta: the policy's logits; behaviour: the logits with which the answers were drawn. step: the
    learning rate of an update, which is plain gradient descent. teacher: the reference's logits,
    None: those of the policy. drew: whether the last step drew random numbers of its own, so that
    the result might depend on the seed.
    """

    algorithm: Algorithm
    tree: Tree
    theta: Tensor
    behaviour: Tensor
    step: float
    teacher: Tensor | None = None

    def __post_init__(self) -> None:
        check_countable(self.algorithm)
        heads = tuple(name for name in self.algorithm.reads() if is_value(name))
        self.algorithm = without_critic(self.algorithm).at_step(1, NUM_STEPS)
        probes = around_refresh(self.algorithm)[1]  # the teacher is the reference under its prompt
        self.algorithm = dataclasses.replace(self.algorithm, probes=probes)
        _check_services(self.algorithm)
        self.model = TableModel(self.tree, self.theta)
        weights = list(self.model.parameters())
        policy = Policy(
            self.model, token_budget=1 << 30, max_grad_norm=math.inf,
            optimiser=torch.optim.SGD(weights, lr=self.step),
        )  # fmt: skip
        known = self.theta if self.teacher is None else self.teacher
        reference = Policy(TableModel(self.tree, known).requires_grad_(False))
        critic: Any = TrueCritic(self.tree, self.theta, heads)
        self.models = StepModels(policy, 1.0, reference, critic)
        self.services = TreeServices(self.tree)
        self.wanted = wanted_columns(self.algorithm) | set(heads)
        part = self.algorithm.rollout.part
        self.rules, self.renormalises = part.rules(), part.renormalises
        self.cut = cut(self.behaviour, self.rules)
        self.drawn_AN = self.cut.log_softmax(0)
        self.logp_AN = self.behaviour.log_softmax(0)
        self.entropy_N = -(self.logp_AN.exp() * self.logp_AN).sum(0)
        self.episodes = part.needs_environment
        self.drew = False

    def moved(
        self, groups: Groups, seed: int = 0, further: Sequence[Groups] = ()
    ) -> Tensor | Asked | None:
        """How far an update moved the logits [A, N], divided by the step size; None when curation
        discarded the groups and requested others.

        Of several updates the mean is taken. `seed` seeds the parts' own draws. further: the
        answers that curation received when it asked for more of the same groups, round by round;
        where it asks once more, the result is how many it asks for.
        """
        rng_of = Watched(seed)
        moved = self._step(groups, further, rng_of)
        self.drew = rng_of.drawn
        return moved

    def _step(
        self, groups: Groups, further: Sequence[Groups], rng_of: Watched
    ) -> Tensor | Asked | None:
        services: Any = self.services  # all that the parts request
        chains = Chains(rng_of, services, {})
        batch = self._received(chains, groups, 0)
        for number, more in enumerate(further):
            self._curated(chains, batch, number)  # which asks for them
            new = self._received(chains, more, number + 1, first=batch.size("B"))
            batch = batch.join(new)
        curated = self._curated(chains, batch, len(further))
        if not isinstance(curated, Batch):
            return curated
        batch = refresh(curated, self.wanted, self.models)
        batch = chains.write("probes", self.algorithm.probes, batch)
        batch = chains.credit(self.algorithm.advantage, batch)
        batch = chains.select(self.algorithm.selection, learnable(batch))
        learned = Learner(self.models, self.step, rng_of).learn(self.algorithm, batch)
        with torch.no_grad():
            moved = (self.model.theta - self.theta) / (self.step * max(learned.num_updates, 1))
            self.model.theta.copy_(self.theta)
        return moved

    def _received(self, chains: Chains, groups: Groups, number: int, first: int = 0) -> Batch:
        """The answers with their rewards. first: the number of the first one in the step."""
        batch = self._rollouts(groups, first)
        return chains.write("reward", self.algorithm.reward, batch, number)

    def _curated(self, chains: Chains, batch: Batch, number: int) -> Batch | Asked | None:
        """The curated batch, how many answers more of each group it asks for, or None where it
        asks for other groups.
        """
        before = dict(chains.state)
        for use in self.algorithm.curation:
            outcome: Curated = chains.call("curation", use, batch, number).value
            if isinstance(outcome.ask, tuple) and outcome.ask:
                asking = f"curation.{use.label}"  # other parts run again on the joined batch
                kept = {asking: chains.state[asking]} if asking in chains.state else {}
                chains.state.clear()
                chains.state.update({**before, **kept})
                return self._asked(use.label, outcome.ask)
            if outcome.ask:
                return None
            batch = batch.keep(outcome.keep_B)
            if outcome.add is not None:
                raise Uncountable(f"{use.label} adds rollouts of its own to those that were drawn")
        return batch

    def _asked(self, who: str, draws: Sequence[Draw]) -> Asked:
        more = [0] * self.tree.num_prompts
        for draw in draws:
            if draw.columns or draw.draw:
                raise Uncountable(f"{who} asks for answers to other prompts than those drawn")
            more[draw.uid] += draw.num_rollouts
        return tuple(more)

    def _rollouts(self, groups: Groups, first: int) -> Batch:
        """The batch as an engine would return it; if the method plays episodes, every action is a
        turn whose state is its node, and the last turn has the reward.
        """
        tree, answers = self.tree, []
        for prompt, group in enumerate(groups):
            answers += [(prompt, tree.paths[number], number) for number in group]
        rewards = [float(tree.rewards_PL[prompt, number]) for prompt, _, number in answers]
        self.services.reward_B = torch.tensor(rewards)
        draws = [Draw(prompt, len(group)) for prompt, group in enumerate(groups) if group]
        turns = [
            self._turns(prompt, path, reward)
            for (prompt, path, _), reward in zip(answers, rewards, strict=True)
        ]
        numbers = {"step": 1, "num_steps": NUM_STEPS, "max_length": tree.depth}
        columns = {name: torch.tensor(value) for name, value in numbers.items()}
        numbered = range(first, first + len(turns))
        batch = assemble_turns(draws, numbered, turns, [False] * len(turns))
        if self.episodes:
            batch = with_turns(batch, turns).set(
                player_B=torch.zeros(len(turns), dtype=torch.int64),
                role_B=torch.zeros(len(turns), dtype=torch.int64),
                episode_B=torch.tensor(numbered),
            )
        return batch.set(**columns)

    def _turns(self, prompt: int, path: tuple[int, ...], reward: float) -> list[Turn]:
        """An answer as a single turn or, in episodes, as one turn for each action."""
        tree, ids = self.tree, self.tree.prompt_ids(prompt)
        nodes = [tree.node(prompt, path[:at]) for at in range(len(path))]
        drawn, logp = (x_AN[path, nodes].tolist() for x_AN in (self.drawn_AN, self.logp_AN))
        event = Event(
            0, path, tuple(drawn), 0, tuple(logp), tuple(self.entropy_N[nodes].tolist()), (),
            "stop", kept=tuple(map(self._kept, nodes)) if self.renormalises else (),
        )  # fmt: skip
        if not self.episodes:
            return [Turn(ids, [event])]
        events = [event.part(at, at + 1) for at in range(len(path))]
        last = len(path) - 1
        return [
            Turn(
                ids if at == 0 else (), [event], state=nodes[at], action=path[at],
                reward=reward if at == last else 0.0, done=at == last,
            )
            for at, event in enumerate(events)
        ]  # fmt: skip

    def _kept(self, node: int) -> bytes:
        """The tokens that the rules keep at a node, encoded as an engine reports them."""
        inside_A = self.cut[:, node] > -math.inf
        ids = inside_A.nonzero()[:, 0].to(torch.int32)
        return b"" if inside_A.all() else ids.numpy().tobytes()


def check_countable(algorithm: Algorithm) -> None:
    """Raise Uncountable unless a step is determined by independently drawn answers (or episodes)
    and their rewards.
    """
    if type(algorithm.rollout.part) not in (SampleIndependently, PlayTurns):
        raise Uncountable(
            f"its rollout {algorithm.rollout.label} does not draw answers independently"
        )
    if algorithm.rollout.part.temperature != 1:
        raise Uncountable("its rollouts are not drawn at temperature 1")


def _check_services(algorithm: Algorithm) -> None:
    """Raise Uncountable for a part of the enumerated stages that requests more than rewards."""
    for path, use in algorithm.uses():
        if path.split(".")[0] in NOT_RUN:
            continue
        for parameter in parts.parameters(use.part):
            if parameter.name in SERVICES - {"grading"}:
                raise Uncountable(
                    f"its {use.label} needs {parameter.name}, which an enumerated step does not "
                    "have"
                )


def without_critic(algorithm: Algorithm) -> Algorithm:
    """The algorithm without the terms that train a critic: the audit's critic is exact."""
    terms = tuple(term for term in algorithm.terms if term.learner != "critic")
    return dataclasses.replace(algorithm, terms=terms)
