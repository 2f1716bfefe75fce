"""The strategies that stand in for others: to score, to play, to run an agent, to read records."""

from dataclasses import replace

from strop.parts.rollout._playing import PlayingFields
from strop.parts.rollout.base import SamplingFields
from strop.parts.rollout.play_turns import PlayTurns
from strop.parts.rollout.read_answers import ReadAnswers
from strop.parts.rollout.read_traces import ReadTraces
from strop.parts.rollout.receive_traces import ReceiveTraces
from strop.parts.rollout.run_agents import RunAgents
from strop.parts.rollout.sample_independently import SampleIndependently


def plain(strategy: SamplingFields) -> SamplingFields:
    """The strategy of the policy's own answers, or of whole episodes, with the same options."""
    if isinstance(strategy, SampleIndependently | PlayTurns | RunAgents):
        return strategy
    if isinstance(strategy, PlayingFields):
        turns, tokens = strategy.max_turns, strategy.max_action_tokens
        return PlayTurns(**strategy.sampling(), max_turns=turns, max_action_tokens=tokens)
    return SampleIndependently(**strategy.sampling())


def scoring(strategy: SamplingFields) -> SamplingFields:
    """The plain strategy that draws alike, and records nothing of what the cuts kept."""
    found = plain(strategy)
    if not found.renormalises:
        return found
    return replace(found, sampling_mask="ignore", top_k=found.rules()[0].k)


def playing(strategy: SamplingFields) -> SamplingFields | None:
    """The strategy that plays episodes in its place; None where there is none."""
    if strategy.needs_environment or isinstance(strategy, ReadAnswers):
        return strategy
    if isinstance(strategy, SampleIndependently):
        return PlayTurns(**strategy.sampling())
    return None


def running(strategy: SamplingFields) -> SamplingFields | None:
    """The strategy that runs an agent in its place; None where there is none."""
    if strategy.needs_agent:
        return strategy
    if isinstance(strategy, SampleIndependently):
        return RunAgents(**strategy.sampling())
    return None


def reading(strategy: SamplingFields) -> SamplingFields | None:
    """The strategy that reads recorded rollouts in its place; None where there is none."""
    if strategy.needs_traces:
        return strategy
    if isinstance(strategy, SampleIndependently | PlayTurns):
        return ReadTraces(**{**strategy.sampling(), "max_tokens": 0})
    return None


def receiving(strategy: SamplingFields) -> SamplingFields | None:
    """The strategy that takes posted rollouts in its place; None where there is none."""
    if strategy.needs_live:
        return strategy
    if isinstance(strategy, SampleIndependently | PlayTurns):
        return ReceiveTraces(**strategy.sampling())
    return None
