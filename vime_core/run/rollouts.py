"""Rollouts on disk: one parquet file a step, one row a sample."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vime_core.errors import DataError, RunFolderError
from vime_core.run.atomic import write_aside
from vime_core.types import Group, Prompt, Sample, Verdict, VersionSpan

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from vime_core.types import Float64Array

SCHEMA = pa.schema(
    [
        ("prompt_id", pa.string()),
        ("group_id", pa.string()),
        ("index", pa.int32()),
        ("prompt_messages", pa.string()),  # JSON
        ("prompt_token_ids", pa.list_(pa.int32())),
        ("label", pa.string()),
        ("data_source", pa.string()),
        ("prompt_metadata", pa.string()),  # JSON
        ("prompt_ids", pa.list_(pa.int32())),
        ("response_text", pa.string()),
        ("response_ids", pa.list_(pa.int32())),
        ("loss_mask", pa.list_(pa.bool_())),
        ("rollout_logprobs", pa.list_(pa.float32())),
        ("advantages", pa.list_(pa.float64())),  # null: not trained on
        ("finish_reason", pa.string()),
        ("policy_versions", pa.list_(pa.struct([("version", pa.int64()), ("start", pa.int32()), ("end", pa.int32())]))),
        ("score", pa.float64()),  # null, as are the next three: no verdict
        ("status", pa.string()),
        ("extracted", pa.string()),
        ("detail", pa.string()),
        ("metadata", pa.string()),  # JSON
    ]
)
"""Columns of the file. `prompt_token_ids` are the prompt's, `prompt_ids` what the sample was generated from."""


STEP = b"vime.step"
"""Key of the file's metadata: the step that the samples are of."""


def write_rollouts(
    path: Path,
    groups: Iterable[Group],
    advantages: Mapping[tuple[str, int], Float64Array],
    step: int | None = None,
) -> None:
    """Write all samples of `groups`, whole or not at all.

    Args:
        path: The parquet file.
        groups: Those without samples leave no trace.
        advantages: [R] by sample key (group id, index), for the samples that are trained on.
        step: That they are of; None leaves it out.

    Raises:
        DataError: when metadata are not plain JSON values.
    """
    rows = [_row(group.prompt, sample, advantages.get(sample.key)) for group in groups for sample in group.samples]
    schema = SCHEMA if step is None else SCHEMA.with_metadata({STEP: str(step)})
    table = pa.Table.from_pylist(rows, schema=schema)
    with write_aside(path) as partial:
        pq.write_table(table, partial, compression="zstd")


def read_rollouts(path: Path) -> list[Group]:
    """The groups that `write_rollouts` wrote, in their order, samples too.

    Raises:
        RunFolderError: when the file cannot be read.
    """
    try:
        rows = pq.read_table(path, schema=SCHEMA).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(path, error) from error
    groups: dict[str, Group] = {}
    for row in rows:
        group = groups.setdefault(row["group_id"], Group(row["group_id"], _prompt(row), []))
        group.samples.append(_sample(row))
    return list(groups.values())


def check_rollouts(path: Path, step: int) -> None:
    """Check that `write_rollouts` wrote a file, for this step where it tells; reads the end of the file only.

    Raises:
        RunFolderError: when the file cannot be read, or is another one.
    """
    try:
        schema = pq.read_schema(path)
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(path, error) from error
    lacking = [name for name in SCHEMA.names if name not in schema.names]
    if lacking:
        raise RunFolderError(f"{path} holds no rollouts of a run: it lacks the column {lacking[0]}; restore the file")
    written = (schema.metadata or {}).get(STEP, str(step).encode()).decode()
    if written != str(step):
        raise RunFolderError(f"{path} holds the rollouts of step {written}: restore the file")


def _unreadable(path: Path, error: Exception) -> RunFolderError:
    return RunFolderError(f"cannot read rollouts {path}: {str(error).splitlines()[0]}")


def _row(prompt: Prompt, sample: Sample, advantages: Float64Array | None) -> dict[str, Any]:
    verdict = sample.verdict
    return {
        "prompt_id": sample.prompt_id,
        "group_id": sample.group_id,
        "index": sample.index,
        "prompt_messages": _json([dict(message) for message in prompt.messages], prompt.id),
        "prompt_token_ids": prompt.token_ids,
        "label": prompt.label,
        "data_source": prompt.data_source,
        "prompt_metadata": _json(dict(prompt.metadata), prompt.id),
        "prompt_ids": sample.prompt_ids,
        "response_text": sample.response_text,
        "response_ids": sample.response_ids,
        "loss_mask": sample.loss_mask,
        "rollout_logprobs": sample.rollout_logprobs,
        "advantages": advantages,
        "finish_reason": sample.finish_reason,
        "policy_versions": [
            {"version": span.version, "start": span.start, "end": span.end} for span in sample.policy_versions
        ],
        "score": verdict and verdict.score,
        "status": verdict and verdict.status,
        "extracted": verdict and verdict.extracted,
        "detail": verdict and verdict.detail,
        "metadata": _json(sample.metadata, sample.prompt_id),
    }


def _prompt(row: Mapping[str, Any]) -> Prompt:
    return Prompt(
        id=row["prompt_id"],
        messages=tuple(json.loads(row["prompt_messages"])),
        token_ids=tuple(row["prompt_token_ids"]),
        label=row["label"],
        data_source=row["data_source"],
        metadata=json.loads(row["prompt_metadata"]),
    )


def _sample(row: Mapping[str, Any]) -> Sample:
    verdict = None
    if row["status"] is not None:
        verdict = Verdict(row["score"], row["status"], row["extracted"], row["detail"])
    return Sample(
        prompt_id=row["prompt_id"],
        group_id=row["group_id"],
        index=row["index"],
        prompt_ids=np.array(row["prompt_ids"], np.int64),
        response_ids=np.array(row["response_ids"], np.int64),
        loss_mask=np.array(row["loss_mask"], np.bool_),
        rollout_logprobs=np.array(row["rollout_logprobs"], np.float32),
        finish_reason=row["finish_reason"],
        policy_versions=tuple(VersionSpan(**span) for span in row["policy_versions"]),
        response_text=row["response_text"],
        verdict=verdict,
        metadata=json.loads(row["metadata"]),
    )


def _json(value: Any, prompt_id: str) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=_from_numpy)
    except (TypeError, ValueError) as error:
        raise DataError(f"prompt {prompt_id}: metadata must be plain JSON values: {error}") from error


def _from_numpy(value: Any) -> Any:
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} {value!r}")
