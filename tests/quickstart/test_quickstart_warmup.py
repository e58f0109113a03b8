import random

import pytest
import torch

from examples.quickstart.problems import Problem
from examples.quickstart.warmup import (
    CAREFUL_RATE,
    VOCABULARY,
    WarmUp,
    demonstrations,
    new_model,
    rate_factor,
    response_loss,
    warm_up,
)


def test_a_demonstration_is_the_chat_and_either_answer(tokenizer):
    choice = demonstrations(Problem(27, 45), tokenizer)
    assert [tokenizer.decode(ids) for ids in choice] == [
        "<|im_start|>user\n27+45=<|im_end|>\n<|im_start|>assistant\n",
        "7+5=12\nAnswer: 72<|im_end|>",
        "Answer: 62<|im_end|>",
    ]


def test_the_model_fits_the_tokenizer(tokenizer):
    config = new_model(tokenizer, 0).config
    assert len(tokenizer) <= VOCABULARY == config.vocab_size
    assert config.head_dim % 32 == 0


def test_a_new_model_is_a_function_of_the_seed_and_leaves_torch_alone(tokenizer):
    before = torch.random.get_rng_state()
    models = [new_model(tokenizer, seed).state_dict() for seed in (0, 0, 1)]
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])
    assert not torch.equal(models[0]["lm_head.weight"], models[2]["lm_head.weight"])


def test_the_warm_up_teaches_the_pupils_habit(tokenizer):
    problem = Problem(27, 45)
    model = new_model(tokenizer, 0)
    warm_up(model, tokenizer, [problem], 0, WarmUp(steps=120, batch=32), report=lambda line: None)
    model.eval()
    choice = demonstrations(problem, tokenizer)
    probabilities = [sequence_probability(model, choice.prompt, ids) for ids in (choice.careful, choice.careless)]
    assert probabilities == pytest.approx([CAREFUL_RATE, 1 - CAREFUL_RATE], abs=0.1)


def sequence_probability(model, prompt, answer):
    tokens = torch.tensor([prompt + answer])
    with torch.no_grad():
        logprobs = model(tokens).logits[0].log_softmax(-1)
    chosen = [logprobs[len(prompt) - 1 + position, token] for position, token in enumerate(answer)]
    return torch.stack(chosen).sum().exp().item()


def test_only_response_tokens_have_a_loss(tokenizer):
    model = new_model(tokenizer, 0)
    generator = random.Random(0)
    examples = [
        ([generator.randrange(256) for _ in range(length)], [generator.randrange(256) for _ in range(answer)])
        for length, answer in ((5, 2), (9, 4), (3, 1))
    ]
    expected = -torch.stack([logprob for prompt, answer in examples for logprob in logprobs_of(model, prompt, answer)])
    assert response_loss(model, examples).item() == pytest.approx(expected.mean().item(), rel=1e-5)


def logprobs_of(model, prompt, answer):
    """[R] log-probs of the answer, from the sequence alone."""
    logits = model(torch.tensor([prompt + answer])).logits[0]
    return logits[len(prompt) - 1 : -1].log_softmax(-1).gather(1, torch.tensor(answer)[:, None])[:, 0]


def test_the_rate_rises_and_then_falls_to_nothing():
    plan = WarmUp(steps=100, lr_rise_steps=10)
    rates = [rate_factor(step, plan) for step in range(101)]
    assert rates[:10] == sorted(rates[:10])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[0] == pytest.approx(0.1)
    assert rates[-1] == pytest.approx(0, abs=1e-12)
