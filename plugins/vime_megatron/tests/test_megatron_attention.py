from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from vime_megatron.attention import PackedAttention
from vime_megatron.packed import lay_out

HEAD_DIM = 8
HOST = torch.device("cpu")

lengths_of_sequences = st.lists(st.integers(1, 20), min_size=1, max_size=12)


def offsets(lengths: list[int]) -> np.ndarray:
    return np.cumsum([0, *lengths], dtype=np.int32)


def attention() -> PackedAttention:
    config = SimpleNamespace(kv_channels=HEAD_DIM)
    return PackedAttention(config, layer_number=1, attn_mask_type=None, attention_type="self")


def one_call_a_sequence(inputs: list[torch.Tensor], lengths: list[int]) -> torch.Tensor:
    """softmax(q k / sqrt(d)) v below the diagonal, written out, for each sequence by itself."""
    repeats = inputs[0].shape[2] // inputs[1].shape[2]
    outputs = []
    for q, k, v in zip(*(tensor.squeeze(1).split(lengths) for tensor in inputs), strict=True):
        k, v = (tensor.repeat_interleave(repeats, dim=1) for tensor in (k, v))
        scores = torch.einsum("ihd,jhd->hij", q, k) / HEAD_DIM**0.5
        later = torch.ones(len(q), len(q), dtype=torch.bool).triu(1)
        outputs.append(torch.einsum("hij,jhd->ihd", scores.masked_fill(later, float("-inf")).softmax(-1), v).flatten(1))
    return torch.cat(outputs).unsqueeze(1)


@given(lengths=lengths_of_sequences, heads=st.sampled_from([(4, 4), (4, 1), (6, 2)]))
@settings(max_examples=40, deadline=None)
def test_attention_and_its_gradients_equal_one_call_a_sequence(lengths: list[int], heads: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(len(lengths))
    shapes = [(sum(lengths), 1, count, HEAD_DIM) for count in (heads[0], heads[1], heads[1])]
    inputs = [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]
    weights = torch.randn(sum(lengths), 1, heads[0] * HEAD_DIM, generator=generator, dtype=torch.float64)
    packed = lay_out(offsets(lengths), HOST)
    found = attention()(*inputs, None, packed_seq_params=packed)
    expected = one_call_a_sequence(inputs, lengths)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    gradients = (torch.autograd.grad((output * weights).sum(), inputs) for output in (found, expected))
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@given(lengths=lengths_of_sequences)
def test_every_token_has_its_own_place(lengths: list[int]) -> None:
    packed = lay_out(offsets(lengths), HOST)
    tokens = torch.arange(sum(lengths))
    laid_out = torch.cat([tokens if group.rows is None else group.rows for group in packed.groups])
    back = laid_out if packed.places is None else laid_out[packed.places]
    assert torch.equal(back, tokens)


@given(lengths=lengths_of_sequences)
def test_padding_at_most_doubles_the_tokens(lengths: list[int]) -> None:
    packed = lay_out(offsets(lengths), HOST)
    assert sum(group.count * group.length for group in packed.groups) < 2 * sum(lengths)
    assert sum(group.count for group in packed.groups) == len(lengths)
    assert len(packed.groups) <= int(max(lengths)).bit_length() + 1


def test_sequences_of_one_length_are_not_copied() -> None:
    packed = lay_out(offsets([5, 5, 5]), HOST)
    assert packed.places is None
    assert [group.rows for group in packed.groups] == [None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_not_a_number_in_one_sequence_stays_there(dtype: torch.dtype) -> None:
    tensors = [torch.ones(12, 1, 2, HEAD_DIM, dtype=dtype) for _ in range(3)]
    for tensor in tensors:
        tensor[:3] = float("nan")
    found = attention()(*tensors, None, packed_seq_params=lay_out(offsets([3, 4, 5]), HOST))
    assert found[:3].isnan().all()
    assert not found[3:].isnan().any()


def test_scale_of_the_configuration_is_used() -> None:
    query, key, value = torch.randn(3, 6, 1, 2, HEAD_DIM, generator=torch.Generator().manual_seed(0))
    config = SimpleNamespace(kv_channels=HEAD_DIM)
    module = PackedAttention(config, 1, None, "self", softmax_scale=0.25)
    found = module(query, key, value, None, packed_seq_params=lay_out(offsets([6]), HOST))
    q, k, v = (tensor.transpose(0, 2).transpose(0, 1) for tensor in (query, key, value))
    expected = functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.25)
    torch.testing.assert_close(found, expected.transpose(0, 1).transpose(0, 2).flatten(2))
