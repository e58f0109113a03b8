"""Answers to single prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vime_core.errors import ConfigError
from vime_core.loop.serving import VERSION
from vime_core.rollout.concurrency import run_in_order
from vime_core.rollout.groups import GroupMaker
from vime_core.rollout.sampling import evaluation_params, group_id

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vime_core.config.schema import EvalSetConfig
    from vime_core.loop.serving import Serving
    from vime_core.types import Group, Prompt


def check_greedy(sampling: EvalSetConfig, what: str) -> None:
    """Check that several samples are not one and the same.

    Raises:
        ConfigError: when they are greedy.
    """
    if sampling.temperature == 0 and sampling.samples_per_prompt > 1:
        raise ConfigError(
            f"{what}: {sampling.samples_per_prompt} samples at temperature 0 are one and the same; set a temperature "
            "above 0, or take one sample"
        )


def answer(
    engines: Serving, prompts: Sequence[Prompt], sampling: EvalSetConfig, finished: Callable[[Group], None]
) -> None:
    """Sample answers to all prompts.

    Args:
        engines: ready.
        prompts: tokenised.
        sampling: samples of each prompt, and the temperature.
        finished: told the samples of each prompt, in the order of the prompts.

    Raises:
        EngineError, DeadlineError, PluginError: the first failure of a part.
    """
    inputs = engines.inputs
    config, stop_ids = inputs.config, inputs.model.geometry.eos_token_ids
    maker = GroupMaker(inputs.function, engines.rollout, engines.judge, inputs.tokenizer)

    async def group(prompt: Prompt) -> Group:
        identity = group_id("generate", 0, prompt.id)
        params = evaluation_params(config.rollout, sampling, stop_ids, identity, config.run.seed)
        return await maker.generate(prompt, identity, params, VERSION, logprobs=sampling.temperature > 0)

    requests = config.rollout.prompts_per_step * config.rollout.samples_per_prompt
    limit = max(1, requests // sampling.samples_per_prompt)
    engines.wait_for(run_in_order(prompts, group, at_a_time=limit, finished=finished))
