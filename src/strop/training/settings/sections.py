"""The sections of a run's settings, without the method's options, each with its description."""

import re
import tomllib
import typing
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, field_validator

from strop.data.chat import Chat, read_tools
from strop.environments.agents import agent_of
from strop.environments.base import JOINED, EnvironmentSource, source_of
from strop.environments.episodes import CallLimits
from strop.support.errors import UserError

LONGEST = 1e6  # seconds of a limit: clocks and sockets accept no more
MOST = 1024  # threads and processes
OF_A_SET = re.compile(r"(?P<set>[\w.-]+)=(?P<source>.+)", re.DOTALL)  # in evaluation.reward
Share = Annotated[float, Field(ge=0, lt=1)]
CallForm = Literal["auto", "hermes", "qwen3_coder", "glm45", "llama3", "json", "text"]


class Section(BaseModel):
    """A section refuses unknown keys; one value stands for a list of one."""

    model_config = ConfigDict(extra="forbid", validate_default=True)

    @field_validator("*", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: Any, info: Any) -> Any:
        declared = cls.model_fields[info.field_name].annotation
        is_list = typing.get_origin(declared) is tuple
        return (value,) if is_list and isinstance(value, str | int | float) else value


class ModelSettings(Section):
    """Which model is trained and how it is held in memory."""

    name: str = Field(
        default="tiny",
        description="folder, Hugging Face name, GGUF file, or shipped: tiny, tiny-worked",
    )
    dtype: str = Field(default="float32", description="float32, bfloat16, float16 or float64")
    device: str = Field(default="auto", description="auto, cpu, cuda, cuda:1")
    gradient_checkpointing: bool = Field(default=False, description="less memory, more time")
    attention: str = Field(default="sdpa", description="attention implementation of transformers")
    onednn: bool = Field(default=True, description="on a CPU, oneDNN's products of float32")
    use_liger_kernel: bool = Field(default=False, description="on a GPU, Liger's layers")
    router_replay: Literal["disabled", "R2", "R3"] = Field(
        default="disabled",
        description="the routing that a mixture of experts uses in updates; disabled: its own, "
        "R2: that of the step's first pass, R3: the engine's",
    )
    router_aux_loss_coef: float = Field(
        default=0.0, ge=0, le=1e3,
        description="coefficient of the term that balances the load of experts, balance_experts; "
        "0: none",
    )  # fmt: skip
    chat_template: str = Field(
        default="", description="file with a chat template for the tokenizer"
    )
    reference: str = Field(
        default="",
        description="the frozen model that reference terms compare with, or a teacher: given as in "
        "name, or the URL of a server; empty: the run's starting weights",
    )
    reference_api_key_env: str = Field(
        default="",
        description="environment variable with the key of a reference behind a server; empty: none",
    )
    lora_rank: int = Field(
        default=0,
        ge=0,
        le=2**16,
        description="train low-rank adapters of this rank; 0: all weights",
    )
    lora_alpha: int = Field(
        default=0, ge=0, description="adapters are scaled by alpha/rank; 0: twice the rank"
    )
    lora_targets: tuple[str, ...] = Field(
        default=(), description="layers with an adapter (q_proj, ...); none: all but the head"
    )


class DataSettings(Section):
    """The task or the data to train on."""

    task: str = Field(
        default="",
        description="countdown, worked_countdown, reasoning_gym:NAME, traces:FILE, traces:live, an "
        "environment or a list of environments, or agent:file.py:function or verifiers:ADDRESS, "
        "which alone also take files; empty: the task of the shipped model",
    )
    files: tuple[str, ...] = Field(
        default=(),
        description="JSON, Parquet or CSV with a prompt column, a folder of datasets, or "
        "hf:NAME:CONFIG:SPLIT; NAME=FILE names a source",
    )
    weights: tuple[Annotated[FiniteFloat, Field(gt=0)], ...] = Field(
        default=(),
        description="how often each of the files, or environments, is drawn from, in their order; "
        "none: all prompts equally often",
    )
    reader: str = Field(
        default="auto", description="layout of rows: auto, prompt, verl, question, messages"
    )
    prompt_column: str = Field(default="prompt", description="column of the files with the prompts")
    prompt_as: Literal["auto", "text", "messages"] = Field(
        default="auto",
        description="text stays as it is, messages go through the chat template; auto: text in "
        "the column prompt stays text, text in another column is a user's message",
    )
    system_prompt: str = Field(
        default="", description="system message before prompts without one; texts become messages"
    )
    tools: str = Field(
        default="", description="JSON file of the tools that the chat template shows"
    )
    thinking: Literal["all", "template"] = Field(
        default="all",
        description="how much of earlier turns' <think> text a turn sees: all, or as much as the "
        "chat template shows (where it drops some, the turn starts a new context)",
    )
    call_form: CallForm = Field(
        default="auto",
        description="how the model writes calls of tools; auto: as in its chat template, text "
        "without one",
    )
    renderer: str = Field(
        default="off",
        description="model family (qwen3, gpt-oss, ...) with which the package renderers reads "
        "calls and writes turns; auto: by the model's name; off: strop does it",
    )
    chat_template_kwargs: dict[str, Any] = Field(
        default={},
        description="further arguments of the chat template, such as {enable_thinking: false}",
    )
    columns: dict[str, str] = Field(
        default={},
        description="new names for columns of the files, {theirs: ours}: {question: prompt, "
        "solution: answer}",
    )
    validation_files: tuple[str, ...] = Field(
        default=(),
        description="files as above, for validation; NAME=FILE is a separate set, eval/NAME/...",
    )
    validation_size: int = Field(
        default=0, ge=0, description="prompts of validation; 0: the task's own"
    )
    heldout_size: int = Field(
        default=0, ge=0, description="prompts held out for strop eval; 0: the task's own"
    )
    train_size: int = Field(default=0, ge=0, description="prompts of training; 0: all")
    max_prompt_tokens: int = Field(
        default=0, ge=0, description="longest prompt; 0: what the model allows"
    )
    overlong: Literal["refuse", "drop"] = Field(
        default="refuse",
        description="rows that are too long: refuse the run, or drop them, counted",
    )
    task_config: dict[str, Any] = Field(default={}, description="options of a generated task")
    stop_strings: tuple[str, ...] = Field(default=(), description="text that ends an answer")
    env_workers: int = Field(
        default=0, ge=0, le=MOST,
        description="processes that play an environment with a plain step; 0: this one",
    )  # fmt: skip
    env_timeout_seconds: float = Field(
        default=120.0, gt=0, le=LONGEST,
        description="limit of a call of an environment that is async or in another process",
    )  # fmt: skip
    env_retries: int = Field(
        default=2, ge=0, le=MOST,
        description="retries of a call of an environment after a transient failure",
    )  # fmt: skip

    @field_validator("chat_template_kwargs", "task_config")
    @classmethod
    def _can_be_saved(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Refuse values that config.toml cannot hold, with which a resumed run would differ."""
        try:
            tomli_w.dumps(given)
        except TypeError as error:
            raise ValueError(
                f"config.toml, from which a run resumes, cannot hold it: {error}"
            ) from error
        return given

    @field_validator("task", mode="before")
    @classmethod
    def _several(cls, value: Any) -> Any:
        """One name for a list of environments, which a command gives as text."""
        if isinstance(value, str) and value.startswith("["):
            try:
                value = tomllib.loads(f"task = {value}")["task"]
            except tomllib.TOMLDecodeError as error:
                raise ValueError(
                    f'{value} is no list, such as ["corridor", "calculator"]'
                ) from error
        if isinstance(value, list | tuple) and value and all(isinstance(v, str) for v in value):
            return JOINED.join(value)
        return value

    def env_limits(self) -> CallLimits:
        """The time limit and the retries of calls of an environment."""
        return CallLimits(self.env_retries, self.env_timeout_seconds)

    def num_env_workers(self, source: EnvironmentSource) -> int:
        """Processes that play the environment; 0: this one."""
        if self.env_workers and (source.is_asynchronous or source.steps_all):
            how = "is asynchronous" if source.is_asynchronous else "steps many episodes at once"
            raise UserError(
                f"data.env_workers={self.env_workers}: environment {source.name} {how} and is "
                "played in this process: leave it out"
            )
        return self.env_workers

    def environment(self) -> EnvironmentSource | None:
        """The environment that the task is played in; None for files and all other tasks."""
        return None if self.files else source_of(self.task, self.task_config)

    def agent(self) -> str:
        """The agent function that is called for each rollout; empty where there is none. Raises
        UserError for a wrong name.
        """
        return agent_of(self.task) or ""

    def has_traces(self) -> bool:
        """Whether the run trains on recorded rollouts that exist when it starts."""
        return not self.files and self.task.startswith("traces:") and not self.is_live()

    def is_live(self) -> bool:
        """Whether the run trains on rollouts that others post while it trains."""
        live = self.task == "traces:live" or self.task.startswith("traces:queue:")
        return live and not self.files

    def chat(self) -> Chat:
        """How prompts are formatted for a model with a chat template. Raises UserError."""
        tools = {"tools": read_tools(self.tools)} if self.tools else {}
        template = {**self.chat_template_kwargs, **tools}
        return Chat(
            self.prompt_as, self.system_prompt, template, thinking=self.thinking,
            call_form=self.call_form, renderer=self.renderer,
        )  # fmt: skip


# Settings of data with which the given files are used whole, without other sets.
FILES_ALONE: dict[str, Any] = {
    "validation_files": (), "validation_size": 0, "heldout_size": 0, "train_size": 0, "weights": (),
}  # fmt: skip


class RewardSettings(Section):
    """The functions that score answers."""

    functions: tuple[str, ...] = Field(
        default=(), description="file.py:function or a built-in; none: the task's"
    )
    weights: tuple[FiniteFloat, ...] = Field(
        default=(), description="one per function; none: 1 each"
    )
    timeout_seconds: float = Field(default=10.0, gt=0, le=LONGEST, description="limit of one call")
    num_workers: int = Field(default=1, ge=1, le=MOST, description="grader processes")
    on_failure: FiniteFloat | Literal["unscored"] = Field(
        default=0.0,
        description="score of an answer on which a reward fails (timeout, crash, exception, no "
        "score), or unscored",
    )
    max_unscored_share: float = Field(
        default=0.5, ge=0, le=1,
        description="the run stops when failures leave a larger share of 20 steps' answers "
        "without a score",
    )  # fmt: skip


class TrainingSettings(Section):
    """The optimiser and the loop."""

    steps: int = Field(default=300, ge=1, description="training steps")
    lr: float | str = Field(default=1e-6, description="AdamW's learning rate, or a schedule")
    weight_decay: float = Field(default=0.0, ge=0, le=1e6, description="AdamW's weight decay")
    betas: tuple[Share, Share] = Field(default=(0.9, 0.95), description="AdamW's betas")
    max_grad_norm: float = Field(
        default=1.0, gt=0, description="gradients are scaled down to this norm"
    )
    token_budget: int = Field(
        default=0, ge=0,
        description="tokens of a forward pass, padding included; 0: 2048 on a CPU, 16384 on a GPU",
    )  # fmt: skip
    share_prefixes: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="compute the common prefix of several rollouts once; auto: where it saves a "
        "fifth of the work, and the model supports it",
    )
    max_staleness: int = Field(
        default=0, ge=0, le=2**20,
        description="steps by which the weights that start a rollout may be behind; above 0 a "
        "separate process collects rollouts while this one trains; 0: one after the other",
    )  # fmt: skip
    renew_between_tokens: bool = Field(
        default=True,
        description="with max_staleness: new weights continue the rollouts in progress; false: "
        "rollouts end under the weights that they started with, on Ray engine by engine",
    )
    collector_device: str = Field(
        default="",
        description="with max_staleness: device of the collecting process's model, such as "
        "cuda:1; empty: model.device",
    )
    collector_timeout_seconds: float = Field(
        default=600.0, gt=0, le=LONGEST,
        description="with max_staleness: silence after which the collecting process is restarted",
    )  # fmt: skip
    process_timeout_seconds: float = Field(
        default=600.0, gt=0, le=LONGEST,
        description="with several processes: silence of a process, or time without progress in a "
        "step, after which it counts as hanging and the run ends and names it",
    )  # fmt: skip
    num_slots: int = Field(
        default=512, ge=1, le=2**20, description="sequences that the engine generates at once"
    )
    save_every: int = Field(
        default=50, ge=0, description="steps between checkpoints; 0: at the end only"
    )
    checkpoint: Literal["whole", "sharded"] = Field(
        default="whole",
        description="with several processes: whole: the first writes the whole optimiser, sharded: "
        "each writes its part; any number of processes resumes from either",
    )
    keep_checkpoints: int = Field(default=3, ge=1, description="newest checkpoints to keep")
    best: str = Field(
        default="",
        description="metric of a validation, such as eval/validation/pass@1, by which the best "
        "checkpoint is also kept; empty: none is",
    )
    best_is: Literal["highest", "lowest"] = Field(
        default="highest", description="which value of training.best is the best one"
    )
    patience: int = Field(
        default=0,
        ge=0,
        description="validations in a row without a better training.best, after which the run "
        "ends; 0: it never does",
    )
    debug: bool = Field(default=False, description="check the tensors that parts get and return")
    full_determinism: bool = Field(
        default=False,
        description="use torch's deterministic operators: equal runs on a GPU give equal bits",
    )
    rollouts_every: int = Field(
        default=10, ge=0, description="steps between Parquet files; 0: none"
    )
    keep_rollouts: int = Field(
        default=100, ge=0, description="newest steps whose Parquet files are kept; 0: all"
    )
    inspect: int = Field(
        default=64, ge=0, le=2**20,
        description="rollouts of each such step that `strop inspect` shows token by token; 0: none",
    )  # fmt: skip
    conflict_every: int = Field(
        default=0, ge=0, description="steps between measurements of term conflicts; 0: none"
    )

    def tokens_on(self, device: str) -> int:
        """Padded tokens of one forward pass on a device.

        On a CPU small passes are faster: they have less padding and fit the cache better.
        """
        return self.token_budget or (2048 if device.startswith("cpu") else 16384)


class RaySettings(Section):
    """A Ray cluster that samples, and also trains if `num_trainers` says so."""

    address: str = Field(
        default="",
        description="local starts Ray on this machine; host:port or auto is a cluster; empty: no "
        "Ray",
    )
    num_engines: int = Field(default=1, ge=1, le=MOST, description="engines, an actor each")
    cpus_per_engine: int = Field(
        default=0, ge=0, le=MOST, description="CPUs of an engine; 0: an equal share of all"
    )
    gpus_per_engine: float = Field(default=0.0, ge=0, le=MOST, description="GPUs of an engine")
    num_trainers: int = Field(
        default=0, ge=0, le=MOST,
        description="processes that train, an actor each; 0: the command's own process trains",
    )  # fmt: skip
    cpus_per_trainer: int = Field(default=1, ge=1, le=MOST, description="CPUs of a trainer")
    gpus_per_trainer: float = Field(default=0.0, ge=0, le=MOST, description="GPUs of a trainer")
    restarts: int = Field(
        default=2, ge=0, le=MOST,
        description="restarts of lost trainers without a new checkpoint in between; 0: the run "
        "ends",
    )  # fmt: skip
    weights: Literal["store", "broadcast"] = Field(
        default="store",
        description="how new weights reach the engines: Ray's object store, or a broadcast in a "
        "group of processes, with NCCL on GPUs and gloo on CPUs",
    )
    num_environments: int = Field(
        default=0, ge=0, le=MOST,
        description="processes that play the episodes, an actor each; 0: every trainer plays them",
    )  # fmt: skip
    cpus_per_environment: int = Field(
        default=1, ge=1, le=MOST, description="CPUs of a process that plays episodes"
    )
    cpus_for_rewards: int = Field(
        default=0, ge=0, le=MOST,
        description="CPUs of an actor that grades, with reward.num_workers processes; 0: these "
        "processes run beside the trainer",
    )  # fmt: skip
    timeout_seconds: float = Field(
        default=600.0, gt=0, le=LONGEST,
        description="silence after which an engine is restarted",
    )  # fmt: skip

    @field_validator("address")
    @classmethod
    def _is_an_address(cls, address: str) -> str:
        host, _, port = address.rpartition(":")
        if address in ("", "local", "auto") or (host and "/" not in host and port.isdigit()):
            return address
        raise UserError("give local, auto, or host:port as `ray start` prints it")


class CriticSettings(Section):
    """The value heads of methods that have a critic."""

    lr: float | str = Field(default=1e-5, description="AdamW's learning rate, or a schedule")
    hidden_size: int = Field(
        default=0,
        ge=0,
        le=2**16,
        description="width of the heads' hidden layer; 0: the model's width",
    )
    start: str = Field(
        default="",
        description="checkpoint of a run whose method has the same heads, from which the run "
        "starts",
    )
    target_tau: float = Field(
        default=0.1, gt=0, le=1,
        description="share of the way that the heads' slow copies follow per update, if any",
    )  # fmt: skip


class PhaseSettings(Section):
    """One of several algorithms that a run goes through, in the order of the file."""

    until: str | int | float = Field(
        default="", description="the phase's last step, a share of the run, or metric < level"
    )
    recipe: str = Field(default="", description="the phase's recipe; empty: the run's")
    stages: dict[str, str | list[str]] = Field(
        default={}, description="parts of a stage in place of the recipe's"
    )
    algorithm: dict[str, Any] = Field(default={}, description="options by full path")


class EvaluationSettings(Section):
    """Scores on held-back prompts, never used in training."""

    every: int = Field(default=50, ge=0, description="steps between validations; 0: none")
    num_samples: int = Field(default=16, ge=1, description="answers per prompt")
    k: tuple[int, ...] = Field(
        default=(), description="k of pass@k and maj@k; none: 1 and num_samples"
    )
    max_prompts: int = Field(default=64, ge=1, description="prompts of a validation")
    reward: tuple[str, ...] = Field(
        default=(),
        description="functions that score validations in place of the reward: a source as in "
        "reward.functions, or SET=SOURCE for one set",
    )

    def judges(self, sets: Sequence[str]) -> dict[str, str]:
        """The source that scores each of these sets; sets that the reward scores are left out.

        Raises UserError for an unknown set and for two sources of one set.
        """
        found: dict[str, str] = {}
        for text in self.reward:
            named = OF_A_SET.fullmatch(text)
            name, source = (named["set"], named["source"]) if named else ("", text)
            if name and name not in sets:
                raise UserError(
                    f"evaluation.reward={text}: there is no validation set {name!r}, there is "
                    f"{' and '.join(sets) or 'none'}"
                )
            if name in found:
                raise UserError(f"evaluation.reward: two sources score {name or 'every set'}")
            found[name] = source
        rest = found.pop("", "")
        return {name: found.get(name, rest) for name in sets if found.get(name, rest)}

    @property
    def ks(self) -> tuple[int, ...]:
        """The k to report, smallest first. Raises UserError for one that has too few samples."""
        ks = tuple(sorted(set(self.k))) or tuple(sorted({1, self.num_samples}))
        if ks[0] < 1 or ks[-1] > self.num_samples:
            wrong = ks[0] if ks[0] < 1 else ks[-1]
            raise UserError(
                f"evaluation.k has {wrong}: it must lie between 1 and evaluation.num_samples "
                f"({self.num_samples})"
            )
        return ks


class TrackingSettings(Section):
    """Trackers that the run logs to beside its own folder."""

    to: tuple[Literal["tensorboard", "wandb", "trackio", "mlflow"], ...] = Field(
        default=(),
        description="trackers that also get metrics, settings and some rollouts: tensorboard, "
        "wandb, trackio, mlflow",
    )
    project: str = Field(default="strop", min_length=1, description="the tracker's project")
    name: str = Field(default="", description="the run's name there; empty: its folder's name")
    samples: int = Field(
        default=8, ge=0, le=1000,
        description="rollouts in a table, at each step that training.rollouts_every selects",
    )  # fmt: skip

    @field_validator("to")
    @classmethod
    def _each_once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(value))
