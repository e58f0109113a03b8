"""One of several processes of a conversion: `python -m vime_core.loop.convert_process SHARE`, a `Share` as JSON."""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from pathlib import Path

from vime_core.accelerators.cpu import CpuAccelerator
from vime_core.config.schema import AcceleratorConfig
from vime_core.errors import VimeError
from vime_core.loop.convert import open_conversion, write_share
from vime_core.loop.convert_together import Share
from vime_core.plugins.manager import load_plugins

LONGEST = timedelta(days=7)
"""For ranks to wait for the one that has most to write. One that has gone is noticed at once."""


def convert(share: Share) -> None:
    """Join the other processes and write one share."""
    accelerator = CpuAccelerator(AcceleratorConfig(name="cpu"))
    accelerator.prepare_process(share.threads)
    conversion = open_conversion(
        load_plugins(),
        Path(share.source),
        Path(share.output),
        model=None if share.model is None else Path(share.model),
        backend=share.backend,
    )
    from torch import distributed

    distributed.init_process_group(
        accelerator.torch_backend,
        store=distributed.FileStore(str(share.store), share.processes),
        rank=share.rank,
        world_size=share.processes,
        timeout=LONGEST,
    )
    with share.progress.open("w", buffering=1) as lines:
        write_share(conversion, lambda count: print(count, file=lines), rank=share.rank)
    # A process that ended earlier would end what others still write.
    distributed.barrier()


def main(share: Share) -> int:
    """Convert, and leave the error behind when there is one; the exit status."""
    try:
        convert(share)
    except Exception as error:
        known = isinstance(error, VimeError)
        told = str(error) if known else f"process {share.rank} of {share.processes} failed: {error!r}"
        share.error.write_text(json.dumps({"type": type(error).__name__, "told": told}))
        return error.exit_code if isinstance(error, VimeError) else VimeError.exit_code
    return 0


if __name__ == "__main__":
    status = main(Share(**json.loads(sys.argv[1])))
    sys.stdout.flush()
    # Threads of gloo may still wait for ranks that have gone.
    os._exit(status)
