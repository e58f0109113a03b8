"""The configuration tree. A docstring below each field is its documentation.

Components bring their own dataclasses: those of kinds that the loop reads from (`train`, `rollout`, ...) derive
from the classes here, so that the loop reads the same keys whichever component is chosen.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from omegaconf import MISSING

if TYPE_CHECKING:
    from typing_extensions import Self

DEVICES = ("mi300x", "mi325x", "mi355x", "h100", "h200", "b200")
"""Devices whose memory is known without asking them."""


def option(
    default: Any = MISSING,
    *,
    choices: tuple[str, ...] = (),
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
    below: float | None = None,
    unused_if: tuple[str, Any] | None = None,
) -> Any:
    """A field whose value is checked after composition.

    Args:
        default: the field's default.
        choices: the values there are.
        low: the smallest value.
        above: what the value must exceed.
        high: the largest value.
        below: what the value must stay under.
        unused_if: a setting beside this one, and the value under which this one has no effect: to set it is an error.
    """
    limits = {"choices": choices, "low": low, "above": above, "high": high, "below": below}
    return field(default=default, metadata={**limits, "unused_if": unused_if})


@dataclass(kw_only=True)
class ComponentConfig:
    """Base of every component's settings."""

    name: str = MISSING
    """The entry that is used."""


@dataclass(kw_only=True)
class ModelConfig(ComponentConfig):
    """The model that is trained; `model=auto` finds the family from its `config.json`."""

    name: str = "auto"
    """Model family, or `auto`."""
    path: str = MISSING
    """Folder in Hugging Face format: config, safetensors weights, tokenizer."""
    chat_template: str | None = None
    """File with a Jinja chat template, when the tokenizer's own is not wanted."""


@dataclass(kw_only=True)
class DataConfig(ComponentConfig):
    """Where prompts come from."""

    train: str = MISSING
    """The training prompts."""
    shuffle: bool = True
    """A new seeded order each epoch."""
    seed: int | None = option(None, unused_if=("shuffle", False))
    """Seed of the order; the run's seed when null."""


@dataclass(kw_only=True)
class AlgorithmConfig(ComponentConfig):
    """Base of an algorithm's settings."""

    updates_per_rollout: int = option(1, low=1)
    """Optimizer updates on the samples of one step; each takes an equal share of the prompts."""


@dataclass(kw_only=True)
class TrainConfig(ComponentConfig):
    """Base of a training backend's settings."""

    steps: int = option(100, low=0)
    """Steps of the run: rollout, update, weight push."""
    world_size: int = option(1, low=1)
    """Training ranks."""
    dtype: str = option("bfloat16", choices=("float32", "bfloat16"))
    """Type of weights and activations; master weights and gradients are float32."""
    max_tokens_per_device: int = option(8192, low=1)
    """Most tokens of one packed micro-batch; a longer sample gets one of its own."""
    lr: float = option(1e-6, low=0)
    """Peak learning rate."""
    lr_schedule: str = option("constant", choices=("constant", "linear", "cosine"))
    """Shape after the warm-up."""
    lr_warmup_steps: int = option(0, low=0)
    """Optimizer updates over which the rate rises linearly from 0."""
    lr_min: float = option(0.0, low=0, unused_if=("lr_schedule", "constant"))
    """Rate at the end of `linear` and `cosine`."""
    weight_decay: float = option(0.0, low=0)
    """AdamW's decoupled weight decay; norms and biases are left out."""
    adam_beta1: float = option(0.9, low=0, below=1)
    """Decay of the first moment."""
    adam_beta2: float = option(0.95, low=0, below=1)
    """Decay of the second moment."""
    adam_eps: float = option(1e-8, above=0)
    """Term added to the denominator."""
    clip_grad: float = option(1.0, low=0)
    """Largest global gradient norm; 0 does not clip."""
    logprob_chunk_tokens: int = option(1024, low=1)
    """Tokens whose logits exist in float32 at one time."""
    threads: int | None = option(None, low=1)
    """CPU threads of a rank; planned from the cores when null."""

    def one_rank(self) -> Self:
        """The same for a single rank that holds the whole model; a backend that shares models out resets its keys."""
        return replace(self, world_size=1)


@dataclass(kw_only=True)
class RolloutConfig(ComponentConfig):
    """Base of a rollout backend's settings."""

    prompts_per_step: int = option(32, low=1)
    """Groups trained on in a step."""
    samples_per_prompt: int = option(8, low=1)
    """Samples of a group."""
    temperature: float = option(1.0, above=0)
    """Sampling temperature; the trainer's log-probs use it too."""
    top_p: float = option(1.0, above=0, high=1)
    """Nucleus sampling."""
    top_k: int = option(-1, low=-1)
    """Top-k sampling; -1 turns it off."""
    max_prompt_tokens: int = option(1024, low=1)
    """Longer prompts are left out and counted."""
    max_response_tokens: int = option(1024, low=1)
    """A response is cut here and its finish reason is `length`."""
    num_engines: int = option(1, low=1)
    """Engines behind the router."""
    tensor_parallel_size: int = option(1, low=1)
    """Devices of one engine."""
    threads: int | None = option(None, low=1)
    """CPU threads of an engine; planned from the cores when null."""
    max_oversampling: float = option(4.0, low=1)
    """Most prompts tried in a step when filters drop groups, as a multiple of `prompts_per_step`."""
    partial_batch: bool = True
    """Train on fewer groups when filters dropped so many that `prompts_per_step` is not reached; else stop the run."""
    seed_samples: bool = True
    """Give each sample a seed of its own, derived from the run's seed, step, prompt and index."""


@dataclass(kw_only=True)
class SyncConfig(ComponentConfig):
    """Base of a sync strategy's settings."""

    name: str = "auto"
    """Sync strategy, or `auto`."""
    bucket_mib: int = option(256, low=1)
    """Most mebibytes of weights in flight at one time; a larger tensor travels alone."""
    probe: bool = True
    """Compare trainer and engines on a probe prompt after the first push and after the first update."""
    probe_tolerance: float | None = option(None, above=0, unused_if=("probe", False))
    """Largest allowed difference of a log-prob; by the training dtype when null (1e-4 float32, 0.1 bfloat16)."""


@dataclass(kw_only=True)
class AcceleratorConfig(ComponentConfig):
    """Base of an accelerator's settings."""

    name: str = "auto"
    """Accelerator, or `auto`: the best one available."""
    cores: int | None = option(None, low=1)
    """CPU cores the run may use; those this process may run on when null."""
    device: str | None = option(None, choices=DEVICES)
    """Kind of device that `vime plan` plans for; the one that is here when null."""


def _everything() -> list[str]:
    return ["*"]


@dataclass(kw_only=True)
class RewardConfig(ComponentConfig):
    """Base of a reward's settings."""

    weight: float = 1.0
    """Factor in the sum of several rewards."""
    data_sources: list[str] = field(default_factory=_everything)
    """Rows it judges, as glob patterns of their `data_source`: `[math*, gsm8k]`. Others are left to other rewards."""
    workers: int | None = option(None, low=1)
    """Scoring processes of its own, each asked about one sample at a time: for a reward that waits, for a network or a
    model. Shares those of `reward_pool` when null."""
    time_limit_s: float | None = option(None, above=0)
    """As `reward_pool.time_limit_s`, which applies when null."""


@dataclass(kw_only=True)
class RewardPoolConfig:
    """Processes that score."""

    workers: int = option(1, low=1)
    """Scoring processes."""
    time_limit_s: float = option(10.0, above=0)
    """Longest a verdict may take before its process is ended and the status is `timeout`; time that the process waits
    for a core does not count."""
    batch_size: int = option(64, low=1)
    """Most samples that a scoring process is sent at once."""
    queue_size: int = option(1024, low=1)
    """Samples that may wait for a scoring process; who brings more waits until there is room."""
    memory_limit_mib: int | None = option(4096, low=256)
    """Mebibytes of data that a scoring process may allocate; past them the status is `error`. No limit when null."""
    max_failure_ratio: float = option(0.1, low=0, high=1)
    """Share of samples of a step with status `timeout` or `error` past which the run stops."""


@dataclass(kw_only=True)
class EvalSetConfig:
    """One held-out data set."""

    path: str = MISSING
    """File in the format of `data.train`."""
    max_prompts: int | None = option(None, low=1)
    """Use only the first so many rows."""
    samples_per_prompt: int = option(1, low=1)
    """Samples averaged for each prompt."""
    temperature: float = option(0.0, low=0)
    """0 is greedy."""


@dataclass(kw_only=True)
class EvalConfig:
    """When to evaluate."""

    every: int = option(0, low=0)
    """Evaluate after every so many steps, and before the first and after the last; 0 never does."""


@dataclass(kw_only=True)
class CheckpointConfig:
    """When to save."""

    every: int = option(0, low=0)
    """Save after every so many steps; 0 only after the last."""
    keep_last: int = option(2, low=1)
    """Complete checkpoints that stay on disk."""


@dataclass(kw_only=True)
class ResumeConfig:
    """Whether to go on from a checkpoint."""

    mode: str = option("never", choices=("auto", "must", "never"))
    """`must` needs a checkpoint in `run`; `auto` starts anew where there is none; `never` takes no `run`."""
    run: str | None = option(None, unused_if=("mode", "never"))
    """Run folder to continue, in place."""


@dataclass(kw_only=True)
class RunConfig:
    """The run itself."""

    name: str = "run"
    """Part of the run folder's name."""
    root: str = "outputs"
    """Run folders are made below it: <root>/<date>/<time>_<name>."""
    seed: int = option(0, low=0)
    """Seed of everything random."""
    check_memory: bool = True
    """Refuse to start what `vime plan` says does not fit into memory."""
    save_rollouts: bool = True
    """Write every sample to `rollouts/step_NNNNNN.parquet`."""


@dataclass(kw_only=True)
class ClusterConfig:
    """Ray."""

    address: str | None = None
    """`host:port` of the head node of a running Ray cluster to join; when null, the run starts a Ray of its own on this
    machine. The token comes from `RAY_AUTH_TOKEN`, `RAY_AUTH_TOKEN_PATH` or `~/.ray/auth_token`."""
    train_resource: str | None = None
    """Ray resource of the nodes for the trainer: one that `ray start --resources` gave them, or `node:<address>`; any
    node when null. Needs `placement=disjoint`."""
    rollout_resource: str | None = None
    """The same for the engines."""
    object_store_mib: int = option(256, low=80)
    """Shared memory for Ray's object store, when the run starts Ray."""


@dataclass(kw_only=True)
class DeadlineConfig:
    """Longest waits, in seconds; past one the run stops and says which part did not answer."""

    start: float = option(600.0, above=0)
    """Start of Ray, trainer and engines, each."""
    generate: float = option(1800.0, above=0)
    """One request to an engine."""
    train: float = option(3600.0, above=0)
    """One call of the trainer."""
    push: float = option(600.0, above=0)
    """One weight push."""
    health: float = option(120.0, above=0)
    """How long an engine or the router may leave health checks unanswered, and how long a process of theirs, a trainer
    rank or the keeper may be stopped (SIGSTOP)."""
    stop: float = option(30.0, above=0)
    """Orderly end of each part, before it is killed."""


@dataclass(kw_only=True)
class PluginsConfig:
    """Plugin discovery."""

    block: list[str] = field(default_factory=list)
    """Plugins that are not imported, by entry-point name."""
    strict: bool = False
    """A plugin that fails to load stops the run even when nothing of it is selected."""


@dataclass(kw_only=True)
class Config:
    """The root.

    `model` to `accelerator` hold one chosen component each; `rewards`, `filters`, `trackers` and `observers` several.
    """

    placement: str = option("colocated", choices=("colocated", "disjoint"))
    """`colocated`: trainer and engines share the devices and take turns. `disjoint`: each has devices of its own."""
    model: ModelConfig = MISSING
    data: DataConfig = MISSING
    algorithm: AlgorithmConfig = MISSING
    train: TrainConfig = MISSING
    rollout: RolloutConfig = MISSING
    rollout_function: ComponentConfig = MISSING
    """How a prompt becomes samples."""
    sync: SyncConfig = MISSING
    accelerator: AcceleratorConfig = MISSING
    rewards: dict[str, Any] = field(default_factory=dict)
    """Settings of each chosen reward, by name; chosen with `reward=[...]`."""
    filters: dict[str, Any] = field(default_factory=dict)
    """Settings of each filter that scored groups must pass, by name; chosen with `filter=[...]`."""
    trackers: dict[str, Any] = field(default_factory=dict)
    """Settings of each chosen tracker, by name."""
    observers: dict[str, Any] = field(default_factory=dict)
    """Settings of each chosen observer, by name."""
    evals: dict[str, EvalSetConfig] = field(default_factory=dict)
    """Held-out data sets, by name."""
    eval: EvalConfig = field(default_factory=EvalConfig)
    reward_pool: RewardPoolConfig = field(default_factory=RewardPoolConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    resume: ResumeConfig = field(default_factory=ResumeConfig)
    run: RunConfig = field(default_factory=RunConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    deadlines: DeadlineConfig = field(default_factory=DeadlineConfig)
    plugins: PluginsConfig = field(default_factory=PluginsConfig)
