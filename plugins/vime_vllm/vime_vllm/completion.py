"""vLLM's token-in/token-out protocol (`POST /inference/v1/generate`): request bodies and answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from vime_core.errors import EngineError
from vime_core.types import Completion, FinishReason, VersionSpan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vime_core.types import SamplingParams

GENERATE_PATH = "/inference/v1/generate"
MISSING_LOGPROB = -9999.0
"""What vLLM sends in place of a log-prob that is missing or nan."""


def request_body(token_ids: Sequence[int], params: SamplingParams) -> dict[str, Any]:
    """Body of a request for one response.

    Every sampling setting is sent, so that no default of the server has a say. `ignore_eos` leaves stopping to
    `stop_token_ids` alone; the stop token is part of the response.
    """
    return {
        "token_ids": [int(token) for token in token_ids],
        "sampling_params": {
            "n": 1,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "top_k": params.top_k,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "max_tokens": params.max_tokens,
            "stop_token_ids": list(params.stop_token_ids),
            "ignore_eos": True,
            "seed": params.seed,
            "logprobs": 0,
            "detokenize": False,
        },
        "stream": False,
    }


def parse_completion(answer: Any) -> Completion:
    """The completion in a generate answer.

    Raises:
        EngineError: when the answer is not a whole completion: a token without its log-prob or without a policy
            version, a log-prob of another token, weights that were never pushed. Nothing is ever filled in.
    """
    try:
        [choice] = answer["choices"]
        token_ids = np.asarray(choice["token_ids"], dtype=np.int64)
        content = choice["logprobs"]["content"] or []
        scored = np.asarray([entry["token_id"] for entry in content], dtype=np.int64)
        logprobs = np.asarray([entry["logprob"] for entry in content], dtype=np.float32)
        finish_reason = choice["finish_reason"]
        versions = choice["weight_versions"] or []
    except (KeyError, TypeError, ValueError) as error:
        raise EngineError(f"an engine's answer is no completion: {type(error).__name__}: {error}") from error
    if not np.array_equal(token_ids, scored):
        raise EngineError(
            f"an engine answered with {len(token_ids)} tokens and {len(scored)} log-probs, not one of each token"
        )
    if not np.all(logprobs > MISSING_LOGPROB):
        row = int(np.argmin(logprobs > MISSING_LOGPROB))
        raise EngineError(f"an engine answered without the log-prob of token {row} of {len(token_ids)} (nan?)")
    if finish_reason not in get_args(FinishReason):
        raise EngineError(f"an engine ended a response with reason {finish_reason!r}")
    return Completion(
        token_ids=token_ids,
        logprobs=logprobs,
        finish_reason=finish_reason,
        policy_versions=_versions(versions, len(token_ids)),
    )


def _versions(spans: Sequence[dict[str, Any]], length: int) -> tuple[VersionSpan, ...]:
    found = []
    end = 0
    for span in spans:
        version = str(span["version"])
        if not version.isdecimal():
            raise EngineError(f"an engine sampled with weights {version!r}: the policy was not pushed before")
        if span["start"] != end:
            raise EngineError(f"an engine does not say which policy sampled tokens {end} to {span['start']}")
        end = span["end"]
        found.append(VersionSpan(version=int(version), start=span["start"], end=end))
    if end != length:
        raise EngineError(f"an engine says which policy sampled {end} tokens of a response of {length}")
    return tuple(found)
