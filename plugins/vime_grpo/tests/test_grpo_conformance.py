"""The standard tests of algorithms, for the settings whose losses differ."""

from vime_core.testing import AlgorithmSuite


class TestConformance(AlgorithmSuite):
    entry = "grpo"


class TestWithReferenceAndEntropy(AlgorithmSuite):
    entry = "grpo"
    settings = {"kl_coef": 0.1, "entropy_coef": 0.01, "old_logprobs": "rollout"}


class TestSequenceMean(AlgorithmSuite):
    entry = "grpo"
    settings = {"loss_agg": "seq_mean", "mask_truncated": True, "drop_zero_variance": True}


class TestTokenSum(AlgorithmSuite):
    entry = "grpo"
    settings = {"loss_agg": "seq_mean_token_sum_norm", "norm_tokens": 16, "normalize_std": False}
