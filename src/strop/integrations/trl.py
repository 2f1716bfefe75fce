"""Runs TRL's GRPOTrainer with the advantages, selection and loss of a strop recipe.

    trainer = StropGRPOTrainer("Qwen/Qwen3-0.6B", reward, args=GRPOConfig(...), train_dataset=data,
                               recipe="gspo(clip_high=4e-4)")
    trainer.train()

Everything else is TRL's: data, generation, rewards, optimiser, callbacks, checkpoints. One step of
the recipe is one generation batch of TRL; `num_iterations` and `steps_per_generation` set its
number of updates.
"""

import copy
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl import GRPOConfig, GRPOTrainer

from strop.integrations import _trl_options as options
from strop.integrations.hosted import WEIGHT, Hosted, Rollouts, Step, Update, merged, on_host
from strop.integrations.hosting import TRL, check
from strop.method import notation
from strop.method.algorithm import Algorithm, Method
from strop.support.errors import UserError
from strop.training.learner.kernel import Tally
from strop.training.record.checkpoint import read

STATE = "strop_state.pt"  # file in a checkpoint of TRL
ROW = "strop_row"  # a rollout's row among those of all processes
# Inputs of a forward pass besides tokens, by TRL's own names.
FORWARD = (
    "pixel_values", "image_grid_thw", "num_images", "pixel_attention_mask", "spatial_shapes",
    "num_tiles", "image_sizes", "token_type_ids", "mm_token_type_ids", "image_position_ids",
)  # fmt: skip


class StropGRPOTrainer(GRPOTrainer):
    """TRL's GRPOTrainer with a recipe of strop.

    recipe: a recipe line, as for `strop train`, or a method. The other arguments are TRL's.
    Raises UserError for a recipe that TRL cannot host, and for options of TRL's own loss.
    """

    def __init__(
        self, model: Any, reward_funcs: Any = None, args: GRPOConfig | None = None, *more: Any,
        recipe: str | Method, **named: Any,
    ) -> None:  # fmt: skip
        method = notation.recipe(recipe) if isinstance(recipe, str) else recipe
        if not isinstance(method, Method):
            raise UserError(f"recipe is {type(recipe).__name__}: give a recipe line, or a method")
        check(method, TRL, recipe if isinstance(recipe, str) else "")
        args = GRPOConfig("strop-output") if args is None else copy.copy(args)
        options.check(recipe if isinstance(recipe, str) else "", method, args)
        args.beta = options.reference_weight(method)
        self.strop = Hosted(method, args.seed)
        self._strop_step: Step | None = None  # of the training rollouts
        self._strop_seen: Step | None = None  # of the evaluation rollouts
        self._strop_update: Update | None = None
        self._strop_tallies: list[Tally] = []
        self._strop_rewards = torch.empty(0)
        super().__init__(model, reward_funcs, args, *more, **named)

    # -- rewards and advantages ---------------------------------------------------------------

    def _calculate_rewards(self, inputs: Any, *others: Any) -> Tensor:
        self._strop_rewards = super()._calculate_rewards(inputs, *others)
        return self._strop_rewards

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        training = self.model.training
        if training:
            self._end_step()
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        local = output["completion_ids"].shape[0]
        first = self.accelerator.process_index * local
        output[ROW] = torch.arange(first, first + local, device=output["completion_ids"].device)
        updates = options.updates(self.args)
        number = self.state.global_step // updates + 1
        num_steps = max(-(-self.state.max_steps // updates), number)
        algorithm = self.strop.algorithm(number, num_steps)
        step = self.strop.begin(number, num_steps, self._rollouts(algorithm, inputs, output))
        advantages = step.advantages(local * self.accelerator.num_processes)
        logged = self._logs["advantages"]
        for _ in range(min(len(advantages), len(logged))):
            logged.pop()
        logged.extend(advantages)
        for name, value in step.metrics.items():
            self._metrics["train" if training else "eval"][name].append(value)
        if training:
            self._strop_step = step
        else:
            self._strop_seen = step
        return output

    def _rollouts(self, algorithm: Algorithm, inputs: Any, output: dict[str, Any]) -> Rollouts:
        """The rollouts of all processes, with the columns that the algorithm needs."""
        ids, device = output["completion_ids"], output["completion_ids"].device
        keys = [_key(row) for row in inputs]
        uid_B = self._all(torch.tensor(keys, device=device))
        training = self.model.training
        size = self.num_generations if training else self.num_generations_eval
        columns = self._columns(algorithm, output)
        return Rollouts(
            self._all(ids, self._tokenizer.pad_token_id),
            self._all(_mask(output)).bool(),
            torch.arange(uid_B.shape[0], device=device) // size,
            uid_B,
            self._all(self._truncated(output)),
            self._strop_rewards,
            self.reward_weights.tolist(),
            self.max_completion_length,
            {name: self._all(column) for name, column in columns.items()},
        )

    def _columns(self, algorithm: Algorithm, output: dict[str, Any]) -> dict[str, Tensor]:
        """Token columns of this process's rollouts, before any update."""
        wanted = options.wanted(algorithm, self.strop.method)
        found: dict[str, Tensor] = {}
        if "old_per_token_logps" in output:
            found["logp_old_T"] = output["old_per_token_logps"]
        if wanted - ({"logp_old_T"} & found.keys()):
            with torch.no_grad():
                now, _ = self._now(self.model, output, self.args.per_device_train_batch_size)
            found = {"logp_old_T": now["logp_T"], "entropy_old_T": now["entropy_T"], **found}
            found["entropy_behavior_T"] = now["entropy_T"]
        whole = options.draws_whole(self.args)
        if "sampling_per_token_logps" in output:
            found["logp_behavior_T"] = output["sampling_per_token_logps"]
        elif "logp_old_T" in found and whole:  # the policy itself drew them, without truncation
            found["logp_behavior_T"] = found["logp_old_T"]
        if "logp_behavior_T" in found and whole:
            found["logp_sampler_T"] = found["logp_behavior_T"]
        if "ref_per_token_logps" in output:
            found["logp_ref_T"] = output["ref_per_token_logps"]
        if "importance_sampling_ratio" in output:
            found[WEIGHT] = output["importance_sampling_ratio"].expand_as(output["completion_ids"])
        if void := sorted(wanted - found.keys()):
            raise UserError(
                f"the recipe reads {void[0]}, which TRL does not know for answers sampled with "
                "top_p, top_k, min_p, repetition_penalty or generation_kwargs: leave those out"
            )
        return found

    def _truncated(self, output: Mapping[str, Any]) -> Tensor:
        """Marks truncated rollouts, whose last token is not an end; TRL masks some completely."""
        mask_BL, id_BL = output["completion_mask"].bool(), output["completion_ids"]
        size_B = mask_BL.sum(1)
        last_B = id_BL.gather(1, (size_B - 1).clamp(min=0)[:, None]).squeeze(1)
        ends = [*self.eos_token_ids, self._tokenizer.pad_token_id]
        return ~torch.isin(last_B, torch.tensor(ends, device=id_BL.device)) | (size_B == 0)

    # -- the loss -----------------------------------------------------------------------------

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        training = self.model.training
        mode, passes = "train" if training else "eval", 1
        if training:
            passes = self.args.gradient_accumulation_steps
            if self._step % passes == 0:
                self._strop_update = self._next_update(passes)
        else:
            assert self._strop_seen is not None
            self._strop_update = self._update_of(self._strop_seen, [inputs], 0)
        update = self._strop_update
        assert update is not None
        columns, aux = self._now(model, inputs, compute_aux_loss=self.aux_loss_enabled)
        mask_BL = _mask(inputs)
        loss = update.loss(inputs[ROW], mask_BL, columns) * self.accelerator.num_processes
        loss = loss + update.measured / passes
        if aux is not None:
            loss = loss + self.router_aux_loss_coef * aux / passes
            self._metrics[mode]["aux_loss"].append(self.accelerator.gather(aux).mean().item())
        spent = torch.stack([(columns["entropy_T"].detach() * mask_BL).sum(), mask_BL.sum()])
        total, count = self.accelerator.reduce(spent, reduction="sum").tolist()
        self._metrics[mode]["entropy"].append(total / max(count, 1.0))
        if not training or (self._step + 1) % passes == 0:
            self._tell(mode, update)
        return loss

    def _next_update(self, passes: int) -> Update:
        """The update that begins with this pass, covering all of its passes."""
        step, size = self._strop_step, self.args.steps_per_generation
        assert step is not None
        assert self._buffered_inputs is not None
        first = self._step % size
        number = self._step % (size * self.num_iterations) // passes
        return self._update_of(step, self._buffered_inputs[first : first + passes], number)

    def _update_of(self, step: Step, passes: list[dict[str, Any]], number: int) -> Update:
        row_B = self._all(torch.cat([each[ROW] for each in passes]))
        update = step.update(row_B, number)
        if update.sees_all and (len(passes) > 1 or self.accelerator.num_processes > 1):
            with torch.no_grad():
                each = [self._now(self.model, one)[0] for one in passes]
            columns = {name: self._all(torch.cat([one[name] for one in each])) for name in each[0]}
            update.measure(row_B, self._all(torch.cat([_mask(one) for one in passes])), columns)
        return update

    def _now(
        self, model: Any, inputs: Mapping[str, Any], batch_size: int | None = None, **more: Any
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """Columns [B, L] of the current policy, and the auxiliary loss of a mixture of experts."""
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        seen = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        forward = {name: inputs[name] for name in FORWARD if inputs.get(name) is not None}
        logp, entropy, aux = self._get_per_token_logps_and_entropies(
            model, ids, seen, inputs["completion_ids"].shape[1], batch_size, compute_entropy=True,
            **more, **forward,
        )  # fmt: skip
        return {"logp_T": logp, "entropy_T": entropy}, aux

    # -- logs and state -----------------------------------------------------------------------

    def _tell(self, mode: str, update: Update) -> None:
        """Log the terms' metrics of the update, over all processes."""
        tally = on_host(update.tally)
        if self.accelerator.num_processes > 1 and update.adjoints is None:
            tally = merged(gather_object([tally]))
        means = tally.means() | {f"loss/{name}": x for name, x in tally.losses.items()}
        for name, value in means.items():
            self._metrics[mode][name].append(value)
        if mode == "train":
            self._strop_tallies.append(tally)

    def _end_step(self) -> None:
        """Run controls and store the parts' state, after the last update of the rollouts."""
        step, self._strop_step = self._strop_step, None
        if step is not None:
            metrics = self.strop.end(step, merged(self._strop_tallies).means())
            self._strop_tallies = []
            for name, value in metrics.items():
                self._metrics["train"][name].append(value)

    @property
    def _is_whole(self) -> bool:
        """Whether the last update of the rollouts is done."""
        passes: int = self.args.steps_per_generation * self.num_iterations
        return self._step % passes == 0

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        if self._is_whole:
            self._end_step()
        super()._save_checkpoint(model, trial)
        if self.args.should_save:
            name = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
            torch.save(self.strop.state, Path(self._get_output_dir(trial=trial), name, STATE))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Runs where training begins: a call of `train` that was stopped leaves nothing behind."""
        super()._load_optimizer_and_scheduler(checkpoint)
        if self._is_whole:
            self._end_step()
        self._strop_step, self._strop_tallies = None, []
        self._step, self._buffered_inputs = 0, None
        if checkpoint is not None:
            self._load_strop(Path(checkpoint))

    def _load_strop(self, checkpoint: Path) -> None:
        """Load the state of the recipe's parts and controls. Raises UserError without one."""
        instead = f"give {checkpoint} as the model, and leave resume_from_checkpoint out"
        if not (checkpoint / STATE).exists():
            raise UserError(
                f"{checkpoint} has no {STATE}, because a trainer without a recipe wrote it: to "
                f"train on from its weights, {instead}"
            )
        self.strop.state = read(checkpoint, STATE)
        try:
            self.strop.algorithm(1, 1)
        except UserError as error:
            raise UserError(
                f"{checkpoint} was written with another recipe ({error}): give that one, or, to "
                f"train on from its weights with this one, {instead}"
            ) from error

    def _all(self, tensor: Tensor, fill: int = 0) -> Tensor:
        """The rows of all processes, in the order of processes."""
        if self.accelerator.num_processes == 1:
            return tensor
        if tensor.dim() > 1:
            tensor = self.accelerator.pad_across_processes(tensor, dim=1, pad_index=fill)
        return self.accelerator.gather(tensor)


def _mask(inputs: Mapping[str, Any]) -> Tensor:
    """A mask [B, L] of the tokens that the policy generated, without those of tools."""
    mask_BL: Tensor = inputs["completion_mask"]
    return mask_BL * inputs["tool_mask"] if "tool_mask" in inputs else mask_BL


def _key(row: Mapping[str, Any]) -> int:
    """A 62-bit hash of a row of the data; rows may share a prompt and have other answers."""
    text = json.dumps(row, sort_keys=True, default=lambda other: type(other).__name__)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 2
