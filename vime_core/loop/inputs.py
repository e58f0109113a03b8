"""Everything that can be read and checked before a process starts: here the user's mistakes are found."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vime_core.accelerators.threads import ThreadPlan, plan_threads
from vime_core.cluster.placement import BundleLayout
from vime_core.config.validate import check_engines, check_model, check_sampling
from vime_core.data.config import FilesConfig
from vime_core.data.tokenizer import Tokenizer
from vime_core.errors import ConfigError
from vime_core.loop.shared_memory import check_shared_memory
from vime_core.plugins.auto import has_engines
from vime_core.rewards.routing import check_coverage, is_restricted
from vime_core.rollout.evaluate import EvalSet, load_eval_sets
from vime_core.rollout.filters import CheckedFilter

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from vime_core.config.composed import ComposedConfig
    from vime_core.config.schema import Config
    from vime_core.models.hf import LocalModel
    from vime_core.plugins.interfaces import (
        Accelerator,
        Algorithm,
        Filter,
        PromptSource,
        RolloutFunction,
        RolloutRecord,
    )
    from vime_core.types import Prompt


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a run is made from."""

    composed: ComposedConfig
    config: Config
    accelerator: Accelerator
    model: LocalModel
    tokenizer: Tokenizer
    source: PromptSource | None
    """None when no prompts of `data` are read; when the rollouts exist already, `record` has them."""
    record: RolloutRecord | None
    eval_sets: Sequence[EvalSet]
    algorithm: Algorithm
    function: RolloutFunction
    filters: Sequence[Filter]
    layout: BundleLayout
    threads: ThreadPlan
    ray_environment: Mapping[str, str]
    """See `Accelerator.ray_environment`."""

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Check that the data are those of a checkpoint.

        Args:
            state: of the loop, as the checkpoint has it.

        Raises:
            RunFolderError: names the difference.
        """
        if self.record is not None:
            self.record.check(state["data"])
        elif self.source is not None:
            self.source.restore(state["data"])


def prepare(composed: ComposedConfig, *, reads_data: bool = True) -> Inputs:
    """Read model folder and data, build what needs no process of its own, and check that all fits together.

    Args:
        composed: the configuration.
        reads_data: whether the prompts of `data` are wanted.

    Raises:
        UserError: one line that names what is wrong and what to do.
    """
    config, components = composed.config, composed.components
    accelerator: Accelerator = components["accelerator"].build(config.accelerator)
    check_engines(config, components["rollout"].entry, accelerator)
    model = check_model(composed)
    algorithm: Algorithm = components["algorithm"].build(config.algorithm)
    check_sampling(config, algorithm.needs(), composed.provenance)
    check_shared_memory(config, components, model)
    tokenizer = Tokenizer(model.path, config.model.chat_template)
    limit = config.rollout.max_prompt_tokens
    keys = config.data if isinstance(config.data, FilesConfig) else FilesConfig()
    generates = has_engines(components["rollout"].entry)
    engines = config.rollout.num_engines if generates else 0
    layout = BundleLayout(
        ranks=config.train.world_size,
        engines=engines,
        devices_per_engine=config.rollout.tensor_parallel_size,
        shared=config.placement == "colocated",
    )
    reads = generates and reads_data
    source = components["data"].build(config.data, tokenizer, config.run.seed, limit) if reads else None
    eval_sets = load_eval_sets(config.evals, keys, tokenizer, limit) if config.eval.every else []
    _check_rewards(config, source, eval_sets)
    return Inputs(
        composed=composed,
        config=config,
        accelerator=accelerator,
        model=model,
        tokenizer=tokenizer,
        source=source,
        record=None if generates else _record(composed),
        eval_sets=eval_sets,
        algorithm=algorithm,
        function=components["rollout_function"].build(config.rollout_function),
        filters=_filters(composed),
        layout=layout,
        threads=plan_threads(
            accelerator.device_count() if accelerator.ray_resource == "CPU" else 2 * layout.bundles,
            ranks=layout.ranks,
            engines=layout.engines,
            taking_turns=True,
            trainer=config.train.threads,
            engine=config.rollout.threads,
        ),
        ray_environment=accelerator.ray_environment(),
    )


def _filters(composed: ComposedConfig) -> list[Filter]:
    chosen = {name: composed.components[f"filters.{name}"] for name in composed.config.filters}
    settings = composed.config.filters
    return [CheckedFilter(name, entry, entry.build(settings[name])) for name, entry in chosen.items()]


def _check_rewards(config: Config, source: PromptSource | None, eval_sets: Sequence[EvalSet]) -> None:
    """Recorded rollouts have their verdicts, and a reward for everything leaves no row without one."""
    if (source is not None or eval_sets) and any(map(is_restricted, config.rewards.values())):
        held_out = (prompt for eval_set in eval_sets for prompt in eval_set.prompts)
        check_coverage(config.rewards, chain(() if source is None else _epoch(source), held_out))


def _epoch(source: PromptSource) -> Iterator[Prompt]:
    """Every prompt once; the position stays where it is."""
    state = source.state()
    for _ in range(len(source)):
        yield from source.take(1)
    source.restore(state)


def _record(composed: ComposedConfig) -> RolloutRecord:
    config = composed.config
    record: RolloutRecord = composed.components["rollout"].build(config.rollout, config.train.steps)
    written = None if config.resume.mode == "never" or config.resume.run is None else Path(config.resume.run).resolve()
    if written is not None and written == record.folder:
        raise ConfigError(f"resume.run={config.resume.run} is the run that is replayed: give another folder")
    return record
