"""A cache of a chosen size must hold a longest sequence: vLLM says so only once the engine has started."""

from __future__ import annotations

import pytest

from vime_core.errors import ResourceError
from vime_vllm.command import engine_command


def test_a_cache_that_holds_no_sequence_is_refused(make_context, tmp_path):
    """512 bytes a token, blocks of 128 tokens: 8,512 tokens take 4.19 MiB with vLLM's own block."""
    lengths = {"max_prompt_tokens": 512, "max_response_tokens": 8000}
    with pytest.raises(ResourceError) as caught:
        engine_command(make_context(tmp_path, kv_cache_mib=4, **lengths), 0)
    told = str(caught.value)
    assert told.startswith("rollout.kv_cache_mib=4 holds no sequence of 8512 tokens (rollout.max_prompt_tokens plus ")
    assert told.endswith("which takes 5 MiB: raise it, or lower one of them")
    assert "--kv-cache-memory-bytes" in engine_command(make_context(tmp_path, kv_cache_mib=5, **lengths), 0)
