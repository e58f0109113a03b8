"""Make what the quickstart trains: a model in Hugging Face format, and its problems in the DAPO schema.

Run `python -m examples.quickstart.make_assets [--experts] [--folder FOLDER] [--seed SEED]`; it writes

    FOLDER/model/             config, weights, tokenizer with chat template
    FOLDER/train.parquet      problems to train on
    FOLDER/heldout.parquet    problems that neither the warm-up nor the training sees
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from examples.quickstart.warmup import WarmUp

FOLDER = Path(__file__).parent / "assets"
EXPERTS_FOLDER = Path(__file__).parent / "assets_moe"
"""The same with experts in the model."""
THREADS = 1
"""Fixed, because sums of floats depend on it."""


def make_assets(folder: Path, seed: int, plan: WarmUp | None = None, *, experts: bool = False) -> None:
    """Write everything aside, then rename: an interrupted attempt leaves no half-filled folder.

    Args:
        folder: made.
        seed: of the problems, the model and its warm-up.
        plan: of the warm-up, when the usual one is not wanted.
        experts: whether the model has experts.

    Raises:
        FileExistsError: when `folder` is there already.
    """
    _refuse_existing(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        _fill(aside, seed, plan, experts)
        aside.chmod(0o755)  # mkdtemp keeps others out
        _refuse_existing(folder)  # another process may have made it meanwhile
        aside.rename(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _refuse_existing(folder: Path) -> None:
    if folder.exists():
        raise FileExistsError(f"{folder} is there already: remove it to make it anew")


def _fill(folder: Path, seed: int, plan: WarmUp | None, experts: bool) -> None:
    import torch
    from transformers.utils.logging import disable_progress_bar

    from examples.quickstart.problems import split, write_parquet
    from examples.quickstart.tokenizer import build_tokenizer
    from examples.quickstart.warmup import new_model, warm_up

    torch.set_num_threads(THREADS)
    disable_progress_bar()
    training, held_out = split(seed)
    write_parquet(training, folder / "train.parquet")
    write_parquet(held_out, folder / "heldout.parquet")
    tokenizer = build_tokenizer()
    model = new_model(tokenizer, seed, experts=experts)
    warm_up(model, tokenizer, training, seed, plan)
    tokenizer.save_pretrained(folder / "model")
    model.save_pretrained(folder / "model")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Make the quickstart's model and problems.")
    parser.add_argument("--experts", action="store_true", help="a model with experts")
    parser.add_argument("--folder", type=Path, help=f"{FOLDER.name}, or {EXPERTS_FOLDER.name} with --experts")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    folder = options.folder or (EXPERTS_FOLDER if options.experts else FOLDER)
    start = time.monotonic()
    try:
        make_assets(folder, options.seed, experts=options.experts)
    except FileExistsError as error:
        parser.exit(2, f"error: {error}\n")
    print(f"{folder}: model and problems made in {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
