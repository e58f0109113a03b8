"""The model that GRPO starts from: a tiny Qwen3 that learned to add from a pupil who is careless most of the time.

It has seen good and bad answers to the same kind of problem, as pre-training data hold them, and gives either at
random. Which one is wanted, only the reward tells.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn.functional import cross_entropy
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from examples.quickstart.tokenizer import END_OF_TEXT, IM_END

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from examples.quickstart.problems import Problem

VOCABULARY = 264
"""256 bytes and 3 special tokens, rounded up to a multiple of 8."""
CAREFUL_RATE = 0.2
"""How often the pupil works carefully."""
IGNORED = -100
"""Label without loss, torch's default `ignore_index`."""


@dataclass(frozen=True, kw_only=True)
class WarmUp:
    """How the supervised warm-up goes."""

    steps: int = 500
    batch: int = 64
    lr: float = 2e-3
    lr_rise_steps: int = 20
    """The rate rises linearly over these, then falls to 0 in a half cosine."""
    clip_grad: float = 1.0
    report_every: int = 50


class Demonstrations(NamedTuple):
    """What the warm-up may show of one problem, as token ids."""

    prompt: list[int]
    careful: list[int]
    careless: list[int]


SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "bos_token_id": None,
}
"""Of the model. vLLM on a CPU asks for a head_dim of 32, or more."""
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 192, "norm_topk_prob": True}
"""Of its variant with experts: as many active parameters a token as the dense model has."""


def new_model(tokenizer: PreTrainedTokenizerFast, seed: int, *, experts: bool = False) -> PreTrainedModel:
    """A Qwen3 with random float32 parameters: 0.46 million, or 1.4 million with experts."""
    shape = {
        **SHAPE,
        "eos_token_id": tokenizer.convert_tokens_to_ids(IM_END),
        "pad_token_id": tokenizer.convert_tokens_to_ids(END_OF_TEXT),
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel
        if experts:
            model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**shape, **EXPERTS))
        else:
            model = Qwen3ForCausalLM(Qwen3Config(**shape))
    ends = [tokenizer.convert_tokens_to_ids(token) for token in (IM_END, END_OF_TEXT)]
    model.generation_config = GenerationConfig(eos_token_id=ends, pad_token_id=shape["pad_token_id"])
    return model


def warm_up(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    problems: Sequence[Problem],
    seed: int,
    plan: WarmUp | None = None,
    report: Callable[[str], None] = print,
) -> None:
    """Teach the model, in place, to answer like the pupil.

    Args:
        model: from `new_model`.
        tokenizer: from `build_tokenizer`.
        problems: only these are seen.
        seed: decides order and answers.
        plan: steps and rates.
        report: gets a line every `plan.report_every` steps.
    """
    plan = plan or WarmUp()
    generator = random.Random(seed)
    choices = [demonstrations(problem, tokenizer) for problem in problems]
    optimizer = torch.optim.AdamW(model.parameters(), lr=plan.lr, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_factor(step, plan))
    model.train()
    for step in range(1, plan.steps + 1):
        loss = response_loss(model, [_pick(choice, generator) for choice in generator.choices(choices, k=plan.batch)])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), plan.clip_grad)
        optimizer.step()
        schedule.step()
        if step % plan.report_every == 0:
            report(f"warm-up step {step} of {plan.steps}: loss {loss.item():.3f}")


def demonstrations(problem: Problem, tokenizer: PreTrainedTokenizerFast) -> Demonstrations:
    """Token ids of a problem's prompt, and of the two responses that the pupil may give."""
    chat = [{"role": "user", "content": problem.question}]
    prompt = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    texts = [prompt, *(response + IM_END for response in (problem.careful_response, problem.careless_response))]
    return Demonstrations(*tokenizer(texts)["input_ids"])


def _pick(choice: Demonstrations, generator: random.Random) -> tuple[list[int], list[int]]:
    return choice.prompt, choice.careful if generator.random() < CAREFUL_RATE else choice.careless


def rate_factor(step: int, plan: WarmUp) -> float:
    """Share of the learning rate at a step, counted from 0."""
    return min(1.0, (step + 1) / plan.lr_rise_steps) * 0.5 * (1 + math.cos(math.pi * step / plan.steps))


def response_loss(model: PreTrainedModel, examples: Sequence[tuple[list[int], list[int]]]) -> torch.Tensor:
    """Mean cross-entropy of the response tokens, end of sequence included."""
    length = max(len(prompt) + len(answer) for prompt, answer in examples)
    tokens = torch.full((len(examples), length), model.config.pad_token_id)
    labels = torch.full((len(examples), length), IGNORED)
    for row, (prompt, answer) in enumerate(examples):
        end = len(prompt) + len(answer)
        tokens[row, :end] = torch.tensor(prompt + answer)
        labels[row, len(prompt) : end] = torch.tensor(answer)
    logits = model(tokens).logits[:, :-1]
    return cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED)
