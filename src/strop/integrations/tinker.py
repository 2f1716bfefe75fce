"""Trains with strop on Tinker's API: a service, or the user's own server, has the model.

    strop train grpo --model Qwen/Qwen3-8B engine.kind=tinker

The server's sampler draws the answers. Rewards, advantages, selection and loss are computed by
strop in this process. They result in one number for each token, -dL/dlogp, which is sent back as
the token's weight in the loss `cross_entropy`; the gradient of that loss is the recipe's. See
docs/TINKER.md.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor

from strop.batch.batch import Batch
from strop.engines.base import Engine
from strop.engines.open import EngineSettings
from strop.integrations import hosting
from strop.integrations._tinker_sampler import TinkerEngine, first_line, translated_errors
from strop.support.errors import RunStopped, UserError, needs_extra
from strop.support.files import json_of
from strop.support.http import key_of
from strop.training.learner import models
from strop.training.learner.models import Remote
from strop.training.learner.policy import LARGEST_RATE, AdjointsOf, Policy

PLACES = "tinker.json"  # in a checkpoint: the paths of its weights on the server
RANK = 32  # default rank of the trained adapter
EPS = 1e-8  # AdamW's epsilon, as in a run with local weights
REACH_SECONDS = 10.0
LOSSES = ("loss:sum", "total_loss:sum")  # servers' names for the sum of their loss
TOLERANCE = 0.01  # of that sum, relative to the sum of its terms' absolute values


class TinkerSettings(EngineSettings):
    """A server of Tinker's API, which samples and trains."""

    trains: ClassVar[bool] = True
    url: str = Field(
        default="",
        description="the server, without /v1; empty: strop starts it; with Tinker's API, "
        "TINKER_BASE_URL, else the service",
    )
    api_key_env: str = Field(
        default="",
        description="environment variable with the server's key; empty: none; with Tinker's API, "
        "TINKER_API_KEY",
    )
    train_mlp: bool = Field(default=True, description="adapters on the feed-forward layers")
    train_attn: bool = Field(default=True, description="adapters on attention")
    train_unembed: bool = Field(default=True, description="an adapter on the head")
    ttl_seconds: int = Field(
        default=0, ge=0, description="seconds for which the server keeps a checkpoint; 0: forever"
    )
    _opened: list["Server"] = PrivateAttr(default_factory=list)  # for a policy, and for a teacher

    def check_method(self, method: Any, line: str) -> None:
        """Raise UserError for a method that needs more than log-probabilities of tokens."""
        hosting.check(method, hosting.TINKER, line)

    def load(self, config: Any, source: str) -> "OnServer":
        """The run's model, one of its checkpoints, or another model of the server."""
        for given, why in (
            (config.training.max_staleness, "training.max_staleness: steps wait for their answers"),
            (config.ray.address, "ray.address: the model is on the server"),
            (config.training.conflict_every, "training.conflict_every: gradients stay on the "
             "server"),
            (config.roles.play, "roles.play: the server trains one adapter a run"),
            (config.model.lora_alpha, "model.lora_alpha: the server sets it"),
            (config.model.lora_targets, "model.lora_targets: engine.train_mlp, train_attn and "
             "train_unembed say which layers"),
        ):  # fmt: skip
            if given:
                raise UserError(f"engine.kind=tinker cannot have {why}; leave it out")
        saved = Path(source) / PLACES if source else None
        is_saved = saved is not None and saved.is_file()
        name = config.model.name if is_saved or not source else source
        places = json_of(saved.read_bytes()) if saved is not None and is_saved else {}
        tokenizer = models.tokenizer_of(name, config.model.chat_template)
        server = Server(self, config, name, places)
        self._opened.append(server)
        return OnServer(server, tokenizer, source or name)

    def open(self, model: Any, tokenizer: Any, *, num_slots: int, context_length: int) -> Engine:
        """The engine with the sampler of `model`, which `load` returned."""
        return TinkerEngine(model, tokenizer, context_length)

    def close(self) -> None:
        """End all sessions."""
        while self._opened:
            self._opened.pop().close()


class Server:
    """The model on the server, through the client of the package `tinker`.

    It has the attributes that are needed of a model in memory: sizes, tokens, dtype. Training there
    starts at first use, so that a resumed run starts from its checkpoint. places: paths of a
    checkpoint's weights, to sample with.
    """

    dtype, device = torch.float32, torch.device("cpu")

    def __init__(
        self, settings: TinkerSettings, config: Any, name: str, places: Mapping[str, str]
    ) -> None:
        self.settings, self.name, self.seed = settings, name, config.seed
        self.rank, self.training = config.model.lora_rank or RANK, config.training
        self.places = dict(places)
        self.skeleton = models.skeleton(name)
        self.config = self.skeleton.config
        self.generation_config = getattr(self.skeleton, "generation_config", None)
        self.url, self.service, self.longest = self._connect()
        self.trainer: Any = None
        self.trains = False
        self.pushed = False

    def parameters(self) -> Iterator[Any]:
        """The model's parameters, of which only the sizes are known here."""
        return iter(self.skeleton.parameters())

    def _connect(self) -> tuple[str, Any, int]:
        """The address, the client, and the maximum tokens of a sequence (0: unknown). Raises
        UserError when the package, the key, the server or the model is missing.
        """
        with needs_extra("engine.kind=tinker needs the package tinker", "tinker"):
            import httpx
            import tinker
            from tinker.lib.base_url import resolve_base_url
        url = resolve_base_url(self.settings.url or None)
        key = key_of(self.settings.api_key_env, "engine.api_key_env") or None
        try:  # the client itself would retry for five minutes
            httpx.get(f"{url}/api/v1/healthz", timeout=REACH_SECONDS)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise UserError(
                f"no server at {url}: {first_line(error)}; check engine.url, which has no /api/v1"
            ) from error
        with translated_errors(url, UserError):
            rest = tinker.RestClient(base_url=url, api_key=key)
            found = rest.get_server_capabilities().result().supported_models
        known = {model.model_name: model.max_context_length for model in found}
        if known and self.name not in known:
            raise UserError(
                f"the server at {url} has no model {self.name!r}; it has "
                f"{', '.join(sorted(filter(None, known)))}"
            )
        with translated_errors(url, UserError):
            service = tinker.ServiceClient(base_url=url, api_key=key)
            service.holder  # noqa: B018  # which begins the session
        return url, service, known.get(self.name) or 0

    def ask(self, begin: Callable[[], Any], seconds: float | None = None) -> Any:
        """The result of a call of the client. Raises RunStopped."""
        with translated_errors(self.url):  # its own `result` warns inside a running event loop
            return begin().future().result(seconds)

    def close(self) -> None:
        """End the session; errors of the server are ignored."""
        with suppress(RunStopped):
            self.ask(lambda: self.service.close("success"), REACH_SECONDS)

    # ---- training

    def learner(self) -> Any:
        """The training client, which is created at first use."""
        if self.trainer is None:
            settings = self.settings
            self.trainer = self.ask(lambda: self.service.create_lora_training_client(
                self.name, rank=self.rank, seed=self.seed % 2**31, train_mlp=settings.train_mlp,
                train_attn=settings.train_attn, train_unembed=settings.train_unembed,
            ))  # fmt: skip
        return self.trainer

    def forward(self, data: list[Any]) -> list[Tensor]:
        """Log-probabilities of each sequence's tokens except the first, without gradient."""
        learner = self.learner()
        return _logps(self.ask(lambda: learner.forward(data, "cross_entropy")))

    def forward_backward(self, data: list[Any]) -> list[Tensor]:
        """The same, and the weighted gradient is accumulated for the next step."""
        learner = self.learner()
        output = self.ask(lambda: learner.forward_backward(data, "cross_entropy"))
        found = _logps(output)
        self._check_loss(output.metrics, data, found)
        self.pushed = True
        return found

    def _check_loss(
        self, metrics: Mapping[str, float], data: list[Any], found: list[Tensor]
    ) -> None:
        """Raise RunStopped when the loss is not the weighted sum: some servers divide it, and the
        gradient, by the sum of the weights.
        """
        parts = [
            -each.loss_fn_inputs["weights"].to_torch() * logp[: len(each.model_input.to_ints())]
            for each, logp in zip(data, found, strict=True)
        ]
        wanted = sum(float(part.sum()) for part in parts)
        size = sum(float(part.abs().sum()) for part in parts)
        reported = next((metrics[name] for name in LOSSES if name in metrics), None)
        if reported is None or abs(reported - wanted) > TOLERANCE * size + 1e-6:
            says = (
                "it tells none"
                if reported is None
                else f"it tells {reported:g} in place of {wanted:g}"
            )
            raise RunStopped(
                f"the server at {self.url}: its loss cross_entropy has to be the sum of weight "
                f"times -log-probability, and {says}: its gradient is not the recipe's"
            )

    def step(self, lr: float) -> dict[str, float]:
        """Take an AdamW step; returns the server's metrics of it."""
        import tinker

        if not self.pushed:  # a step by the moments alone, as in a local run
            zero = {"target_tokens": torch.zeros(1, dtype=torch.int64), "weights": torch.zeros(1)}
            self.forward_backward([tinker.Datum(tinker.ModelInput.from_ints([0]), zero)])
        beta1, beta2 = self.training.betas
        params = tinker.AdamParams(
            learning_rate=lr, beta1=beta1, beta2=beta2, eps=EPS,
            weight_decay=self.training.weight_decay, grad_clip_norm=self.training.max_grad_norm,
        )  # fmt: skip
        learner = self.learner()
        metrics = self.ask(lambda: learner.optim_step(params)).metrics or {}
        self.pushed = False
        return dict(metrics)

    # ---- samplers and checkpoints

    def sampler(self) -> Any:
        """A sampling client with the current weights."""
        if self.trains:
            learner = self.learner()
            return self.ask(learner.save_weights_and_get_sampling_client)
        if "sampler" in self.places:
            place = self.places["sampler"]
            return self.ask(lambda: self.service.create_sampling_client(model_path=place))
        return self.start()

    def start(self) -> Any:
        """A sampling client with the weights before training."""
        return self.ask(lambda: self.service.create_sampling_client(base_model=self.name))

    def save_pretrained(self, folder: Path, **_: Any) -> None:
        """Save the weights on the server, for training and for sampling, and write their paths."""
        learner, name = self.learner(), folder.name.lstrip(".")
        ttl = self.settings.ttl_seconds or None
        state = self.ask(lambda: learner.save_state(name, ttl_seconds=ttl, overwrite=True))
        sampler = self.ask(lambda: learner.save_weights_for_sampler(name, ttl_seconds=ttl))
        places = {"url": self.url, "state": state.path, "sampler": sampler.path}
        self.config.save_pretrained(folder)
        (folder / PLACES).write_text(json.dumps(places, indent=1) + "\n", encoding="utf-8")

    def load_state(self, folder: Path) -> None:
        """Resume training from a checkpoint. Raises UserError when the server does not have it."""
        try:
            place = str(json_of((folder / PLACES).read_bytes())["state"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"the checkpoint {folder} has no readable {PLACES}") from error
        with translated_errors(self.url, UserError):
            begin = self.service.create_training_client_from_state_with_optimizer
            self.trainer = begin(place).result()


def _logps(output: Any) -> list[Tensor]:
    """The log-probabilities of each sequence in a response."""
    return [torch.tensor(each["logprobs"].data) for each in output.loss_fn_outputs]


class OnServer(Remote):
    """A model of the server with its tokenizer."""

    @property
    def where(self) -> str:
        """Where the weights are."""
        return f"at {self.model.url}"

    @property
    def context(self) -> int:
        """The maximum tokens of a sequence on the server."""
        return min(super().context, self.model.longest or 2**20)

    def policy(self, training: Any) -> Policy:
        """The policy, whose optimiser is the server's."""
        self.model.trains = True
        found: Any = ServerOptimiser()
        return ServerPolicy(self.model, optimiser=found, current=("logp_T",))

    def frozen(self) -> Policy:
        """The model without the trained adapter."""
        return FrozenOnServer(self.model, current=("logp_T",))

    def num_bytes(self) -> int:
        """Zero: no weights are written here."""
        return 0

    def load_weights(self, folder: Path) -> None:
        """Resume training from the weights and moments of a checkpoint."""
        self.model.load_state(folder)

    def merged(self) -> "OnServer":
        """Raises UserError: the weights are not here."""
        raise UserError(
            f"{self.source} has its weights on the server at {self.model.url}: tinker checkpoint "
            f"download {self.model.places.get('sampler', 'PATH')} downloads them"
        )


class ServerOptimiser:
    """The server's optimiser, whose moments are saved there with the weights."""

    def state_dict(self) -> dict[str, Any]:
        """Empty: there is no local state."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Does nothing: the moments are loaded with the weights of a checkpoint."""


@dataclass(frozen=True)
class Sequences:
    """The contexts of a batch that have tokens of the policy, in the form of the API: all tokens
    except the last, and for each of them the following token with its weight.

    rows: of the contexts' tokens in the batch. mask_T: tokens of the policy.
    """

    ids: list[Tensor]
    rows: list[Tensor]
    mask_T: Tensor

    @classmethod
    def of(cls, batch: Batch) -> "Sequences":
        """The sequences of a batch. Raises UserError when one begins with a token of the policy."""
        context_T, num = batch.contexts()
        mask_T = batch["mask_T"]
        each = torch.arange(len(mask_T)).split(torch.bincount(context_T, minlength=num).tolist())
        rows = [row for row in each if bool(mask_T[row].any())]
        if any(bool(mask_T[row[0]]) for row in rows):
            raise UserError("an answer without a prompt cannot be trained on Tinker's API")
        return cls([batch["id_T"][row] for row in rows], rows, mask_T)

    def data(self, weight_N: Tensor | None = None) -> list[Any]:
        """The data for the API. weight_N: of the policy's tokens in order; None: all 0."""
        import tinker

        weight_T = torch.zeros(self.mask_T.shape)
        if weight_N is not None:
            weight_T[self.mask_T] = weight_N.float()
        return [
            tinker.Datum(
                tinker.ModelInput.from_ints(ids[:-1].tolist()),
                {"target_tokens": ids[1:], "weights": weight_T[row][1:]},
            )
            for ids, row in zip(self.ids, self.rows, strict=True)
        ]

    def spread(self, found: Sequence[Tensor]) -> Tensor:
        """The policy's log-probabilities [T], from those that the server returned."""
        logp_T = torch.zeros(self.mask_T.shape)
        for row, logp in zip(self.rows, found, strict=True):
            logp_T[row[1:]] = logp[: len(row) - 1].float()
        return torch.where(self.mask_T, logp_T, 0)


class ServerPolicy(Policy):
    """The policy on the server, which returns log-probabilities and receives tokens' weights."""

    columns_after_gradient: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Does nothing: the model is on the server."""

    @property
    def experts(self) -> None:
        """None: the server does not report the experts of its tokens."""

    @property
    def device(self) -> torch.device:
        """The device of its columns."""
        return torch.device("cpu")

    def micro_batches(self, batch: Batch) -> list[Tensor]:
        """One micro-batch of all rollouts: the client splits it into requests by itself."""
        num = batch.size("B")
        return [torch.arange(num)] if num else []

    def columns(self, batch: Batch, names: Sequence[str], temperature: float) -> dict[str, Tensor]:
        """Current log-probabilities [T] of the policy's tokens, 0 elsewhere."""
        _check_read(names, temperature)
        sequences = Sequences.of(batch)
        found = self.model.forward(sequences.data()) if sequences.ids else []
        return {"logp_T": sequences.spread(found)}

    def push(
        self, micro: Batch, names: Sequence[str], adjoints_of: AdjointsOf, whole: bool,
        temperature: float, *_: Any, **__: Any,
    ) -> dict[str, Tensor]:  # fmt: skip
        """Run forward and backward on the server; returns the log-probabilities [N].

        If the weights do not depend on the current log-probabilities, this takes one pass; else the
        log-probabilities are fetched first.
        """
        _check_read(names, temperature)
        sequences, mask_T = Sequences.of(micro), micro["mask_T"]
        weight_N = _fixed(adjoints_of, int(mask_T.sum()))
        if weight_N is None:
            now_N = sequences.spread(self.model.forward(sequences.data()))[mask_T]
            weight_N = -adjoints_of(slice(None), {"logp_T": now_N})["logp_T"]
        if not bool(weight_N.isfinite().all()):
            raise RunStopped(
                "a token's weight is not finite; look at the last rollouts for log-probabilities "
                "and advantages that are not"
            )
        found = self.model.forward_backward(sequences.data(weight_N))
        return {"logp_T": sequences.spread(found)[mask_T]}

    def update(self, lr: float) -> dict[str, float]:
        """One optimiser step at learning rate `lr`."""
        if not abs(lr) < LARGEST_RATE:
            raise RunStopped(
                f"the learning rate is {lr}; correct training.lr, or the part that moves it"
            )
        metrics = self.model.step(lr)
        norms = [x for name, x in metrics.items() if _bare(name) == "grad_norm"]
        return {"learning_rate": lr, **({"grad_norm": norms[0]} if norms else {})}

    def zero_gradient(self) -> None:
        """Does nothing: the server clears its gradient in `step`."""

    def parameters(self) -> Iterator[Any]:
        """Empty: there are no local parameters."""
        return iter(())


def _bare(name: str) -> str:
    """The name of a server's metric without the server's prefix and the kind of reduction."""
    return name.rpartition("/")[2].partition(":")[0]


def _check_read(names: Sequence[str], temperature: float) -> None:
    if set(names) - {"logp_T"} or temperature != 1:
        raise UserError(
            f"Tinker's API gives log-probabilities of tokens only at temperature 1, and "
            f"{', '.join(names)} at {temperature:g} was requested"
        )


def _fixed(adjoints_of: AdjointsOf, num: int) -> Tensor | None:
    """The weights [N] of the tokens if they do not depend on the policy's log-probabilities, as in
    a single on-policy update; else None.

    They are computed for three very different policies: with tokens almost certain, with tokens
    almost impossible, and with a spread between these.
    """
    spread_N = -0.05 - 6 * (torch.arange(num) * 0.618034 % 1)
    tried = (torch.full((num,), -0.001), torch.full((num,), -15.0), spread_N)
    first, *others = (adjoints_of(slice(None), {"logp_T": logp_N})["logp_T"] for logp_N in tried)
    return -first if all(torch.equal(first, other) for other in others) else None


class FrozenOnServer(ServerPolicy):
    """A model of the server without training, which only scores tokens."""

    _sampler: Any = None

    def columns(self, batch: Batch, names: Sequence[str], temperature: float) -> dict[str, Tensor]:
        """This model's log-probabilities [T] of the policy's tokens, 0 elsewhere."""
        import tinker

        _check_read(names, temperature)
        self._sampler = self._sampler or self.model.start()
        sequences = Sequences.of(batch)
        started = [
            self._sampler.compute_logprobs(tinker.ModelInput.from_ints(ids.tolist()))
            for ids in sequences.ids
        ]
        found = [self.model.ask(lambda future=future: future) for future in started]
        return {"logp_T": sequences.spread([torch.tensor(each[1:]) for each in found])}
