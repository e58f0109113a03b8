"""Model folders to Megatron's `torch_dist` checkpoints and back, a few tensors at a time, in one process or several."""

from __future__ import annotations

import mmap
import shutil
from collections import Counter
from contextlib import contextmanager
from itertools import accumulate
from typing import IO, TYPE_CHECKING, Any, cast

import torch
from torch import distributed
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter, ReadItem
from torch.distributed.checkpoint import save as save_distributed
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.checkpoint.utils import _create_file_view

from vime_core.errors import ModelError, RunFolderError
from vime_core.models.stacked import open_weights
from vime_core.models.tensors import tensor_shapes
from vime_megatron import checkpoint, compat, mcore, noise
from vime_megatron.config import MegatronConfig
from vime_megatron.layout import plan_layout
from vime_megatron.model import build_model
from vime_megatron.ranks import Ranks
from vime_megatron.sharding import fuse, split
from vime_megatron.weights import MEGATRON_NAMES, WeightMap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from torch.distributed.checkpoint.metadata import MetadataIndex

    from vime_core.models.hf import LocalModel
    from vime_core.models.tensors import Parameter

TORCH_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
"""As safetensors writes them, to torch's."""


class MegatronConverter:
    """Implements `vime_core.plugins.interfaces.CheckpointConverter`.

    Megatron's model is built without values: a parameter has memory only while it is read or written. The checkpoint
    is the part `model` of a trainer's: any layout loads it. Several ranks each hold the whole model so, and read and
    write a share of its parameters.
    """

    def __init__(self, model: LocalModel) -> None:
        self._model = model

    def write(self, folder: Path, progress: Callable[[int], None]) -> None:
        """Write the weights of the model folder as a checkpoint.

        Args:
            folder: new; made.
            progress: gets the bytes of each parameter that is done.

        Raises:
            ModelError: when the tensors of the folder differ in dtype.
            RunFolderError: when the checkpoint cannot be written, e.g. because the disk is full.
        """
        dtype = _dtype(self._model)
        with _skeleton(self._model, dtype) as skeleton, _room_told(folder):
            if distributed.get_rank() == 0:
                folder.mkdir()
            distributed.barrier()
            mcore.dist_checkpointing.save(
                skeleton.policy.sharded_state_dict(),
                str(folder),
                _StreamedSave(_Filler(self._model, skeleton, progress)),
            )

    def read(self, folder: Path, progress: Callable[[int], None]) -> Iterator[tuple[str, torch.Tensor]]:
        """This rank's tensors of a checkpoint in Hugging Face names and its own dtype, layer by layer.

        A tensor is valid until the next one is asked for.

        Args:
            folder: what `write` wrote, or the part `model` of what a trainer wrote on any number of ranks.
            progress: gets the bytes of each parameter that is done, in the dtype of the model folder.

        Raises:
            RunFolderError: when the checkpoint is missing, damaged or of another model.
        """
        geometry, counted = self._model.geometry, _dtype(self._model)
        with _told(folder):
            regions = _Regions(folder)
            dtype = regions.dtype
        with _skeleton(self._model, dtype) as skeleton:
            state = skeleton.policy.sharded_state_dict()
            for item, weight in skeleton.share():
                with _told(folder):
                    for piece in _pieces(state[skeleton.names[id(weight)]]):
                        regions.read(piece)
                yield from zip(item.hf_names, split(item.rule, weight.detach(), geometry), strict=True)
                progress(weight.numel() * counted.itemsize)
                weight.untyped_storage().resize_(0)


class _Skeleton:
    """A whole model on each rank whose parameters have no values."""

    def __init__(self, model: LocalModel, dtype: torch.dtype) -> None:
        config = MegatronConfig(world_size=distributed.get_world_size())
        ranks = Ranks(plan_layout(config, model.geometry), compat.HOST)
        self.policy = build_model(model.geometry, dtype, ranks, config, initialize=False)
        self.weights = WeightMap(self.policy, model.geometry, model.tensor_map, ranks)
        self.names = {id(weight): name for name, weight in self.policy.named_parameters()}

    def share(self) -> list[tuple[Parameter, torch.nn.Parameter]]:
        """The parameters of this rank: neighbours in the order of the tensor map.

        All shares have about the same size; a parameter is of the share that its middle falls into.
        """
        held, rank, size = self.weights.held(), distributed.get_rank(), distributed.get_world_size()
        ends = list(accumulate(weight.numel() for _, weight in held))
        return [
            (item, weight)
            for (item, weight), end in zip(held, ends, strict=True)
            if (2 * end - weight.numel()) * size // (2 * ends[-1]) == rank
        ]


@contextmanager
def _skeleton(model: LocalModel, dtype: torch.dtype) -> Iterator[_Skeleton]:
    """A skeleton, and a process group of one where there is none: Megatron needs it."""
    compat.install()
    noise.ignore(noise.IN_CALLS)
    alone = not distributed.is_initialized()
    if alone:
        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        yield _Skeleton(model, dtype)
    finally:
        mcore.parallel_state.destroy_model_parallel()
        if alone:
            distributed.destroy_process_group()


class _Filler:
    """Gives the parameters of this rank their values when they are asked for.

    It takes them back when all parts of a parameter were.
    """

    def __init__(self, model: LocalModel, skeleton: _Skeleton, progress: Callable[[int], None]) -> None:
        self._files = open_weights(model.path, model.geometry, model.tensor_map)
        self._geometry = model.geometry
        self._progress = progress
        self._entries = {weight.untyped_storage().data_ptr(): (item, weight) for item, weight in skeleton.share()}
        self._parts: Counter[int] = Counter()
        self._filled: set[int] = set()
        self._written: torch.nn.Parameter | None = None

    def has(self, tensor: torch.Tensor) -> bool:
        """Whether it is a part of a parameter of this rank."""
        return tensor.untyped_storage().data_ptr() in self._entries

    def expect(self, tensor: torch.Tensor) -> None:
        """Count a part of a parameter that will be asked for."""
        self._parts[tensor.untyped_storage().data_ptr()] += 1

    @torch.no_grad()
    def fill(self, tensor: torch.Tensor) -> torch.Tensor:
        """The part with its values, until the next one is asked for."""
        if self._written is not None:
            self._written.untyped_storage().resize_(0)
            self._written = None
        place = tensor.untyped_storage().data_ptr()
        item, weight = self._entries[place]
        if place not in self._filled:
            parts = [part for _, part in self._files.load(item.hf_names)]
            weight.copy_(fuse(item.rule, parts, self._geometry))
            self._filled.add(place)
        self._parts[place] -= 1
        if not self._parts[place]:
            self._progress(weight.nbytes)
            self._written = weight
        return tensor


class _StreamedPlanner(mcore.MCoreSavePlanner):
    """Asks for each tensor when it is written."""

    def __init__(self, filler: _Filler) -> None:
        super().__init__(dedup_replicated_tensors=False, flatten_state_dict=False)
        self._filler = filler

    def create_local_plan(self) -> Any:
        """Megatron's plan; the filler learns how many parts each parameter has."""
        plan = super().create_local_plan()
        for tensor in filter(torch.is_tensor, (self.lookup_object(item.index) for item in plan.items)):
            self._filler.expect(tensor)
        return plan

    def resolve_data(self, write_item: Any) -> Any:
        """The values of one tensor, or what else Megatron's modules save."""
        found = self.lookup_object(write_item.index)
        return self._filler.fill(found) if torch.is_tensor(found) else super().resolve_data(write_item)


class _StreamedSave(checkpoint.InProcessSave):
    """Megatron's `torch_dist` format with tensors that are read while it is written."""

    def __init__(self, filler: _Filler) -> None:
        super().__init__()
        self._filler = filler

    def save(self, sharded_state_dict: mcore.ShardedStateDict, checkpoint_dir: str) -> None:
        """Write the shards of this rank; collective."""
        for entry in mcore.nested_values(sharded_state_dict):
            if isinstance(entry, mcore.ShardedTensor):
                entry.replica_id = 0 if self._filler.has(entry.data) else 1
        tensors, _, _ = mcore._replace_state_dict_keys_with_sharded_keys(
            sharded_state_dict, self.keep_only_main_replica
        )
        save_distributed(
            mcore.mcore_to_pyt_state_dict(tensors, is_loading=False),
            storage_writer=FileSystemWriter(checkpoint_dir),
            planner=_StreamedPlanner(self._filler),
        )


class _Regions:
    """Reads regions of a checkpoint's tensors into tensors of this process.

    torch's own reader loads a stored tensor whole before it copies what is asked for. Here files are mapped, so that
    a tensor takes memory once.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stored = FileSystemReader(folder).read_metadata()
        self._files: dict[str, mmap.mmap] = {}

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return self._tensor(MEGATRON_NAMES["embedding"]).properties.dtype

    def read(self, piece: mcore.ShardedTensor) -> None:
        """Fill a piece from all that ranks wrote of it.

        Raises:
            ValueError: when the tensor is of another shape or dtype in the checkpoint, or not whole there.
        """
        stored, shape = self._tensor(piece.key), tuple(piece.global_shape)
        rows = stored.size[0] - shape[0]
        padded = piece.allow_shape_mismatch and rows > 0
        if (rows and not padded) or tuple(stored.size[1:]) != shape[1:]:
            raise ValueError(f"{piece.key} has shape {list(stored.size)}, not {list(shape)}")
        if stored.properties.dtype != piece.dtype:
            raise ValueError(f"{piece.key} is of {stored.properties.dtype}, not of {piece.dtype} as others")
        sizes = torch.Size((1,) * piece.prepend_axis_num + tuple(piece.local_shape))
        target = piece.data.detach().view(sizes)
        for item, part in self._parts(piece.key, torch.Size(piece.global_offset), sizes):
            narrow_tensor_by_index(target, item.dest_offsets, item.lengths).copy_(part)
        if padded:
            padding = self._parts(piece.key, torch.Size((shape[0], 0)), torch.Size((rows, *shape[1:])))
            if any(bool(part.any()) for _, part in padding):
                raise ValueError(
                    f"{piece.key} has values in rows {shape[0]} to {stored.size[0]}, beyond the vocabulary"
                )

    def _tensor(self, key: str) -> TensorStorageMetadata:
        stored = self._stored.state_dict_metadata[key]
        if not isinstance(stored, TensorStorageMetadata):
            raise ValueError(f"{key} is no tensor")
        return stored

    def _parts(self, key: str, offsets: torch.Size, sizes: torch.Size) -> Iterator[tuple[ReadItem, torch.Tensor]]:
        """What was written of a region, and where in it each part belongs."""
        items = create_read_items_for_chunk_list(key, self._tensor(key), [ChunkStorageMetadata(offsets, sizes)])
        if sum(item.lengths.numel() for item in items) != sizes.numel():
            raise ValueError(f"{key} is not whole")
        for item in items:
            yield item, narrow_tensor_by_index(self._mapped(item.storage_index), item.storage_offsets, item.lengths)

    def _mapped(self, index: MetadataIndex) -> torch.Tensor:
        """A stored tensor in the memory of its file, which the system takes back as it likes."""
        info = self._stored.storage_data[index]
        if info.relative_path not in self._files:
            with (self._folder / info.relative_path).open("rb") as stream:
                # A private map: torch takes no read-only one without a warning.
                self._files[info.relative_path] = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
        with (self._folder / info.relative_path).open("rb") as stream, FakeTensorMode():
            place = cast("IO[bytes]", _create_file_view(stream, info.offset, info.length))
            told = torch.load(place, weights_only=True)
        storage = told.untyped_storage()
        values = torch.frombuffer(
            self._files[info.relative_path],
            dtype=told.dtype,
            count=storage.nbytes() // told.itemsize,
            offset=info.offset + storage._checkpoint_offset,
        )
        return values.as_strided(told.shape, told.stride(), told.storage_offset())


def _pieces(entry: mcore.ShardedTensor | mcore.ShardedTensorFactory) -> list[mcore.ShardedTensor]:
    """A parameter as its checkpoint holds it: gate and up are tensors of their own."""
    built = entry.build() if isinstance(entry, mcore.ShardedTensorFactory) else entry
    return list(built) if isinstance(built, list) else [built]


@contextmanager
def _told(folder: Path) -> Iterator[None]:
    """A checkpoint that cannot be read is the user's mistake."""
    try:
        yield
    except (*checkpoint.UNREADABLE, ValueError) as error:
        told = checkpoint.first_line(error)
        raise RunFolderError(f"{folder} is damaged, no checkpoint of Megatron, or of another model ({told})") from error


@contextmanager
def _room_told(folder: Path) -> Iterator[None]:
    """A checkpoint that cannot be written is told with the room there is."""
    try:
        yield
    except checkpoint.UNWRITABLE as error:
        free = shutil.disk_usage(folder.parent).free >> 20
        raise RunFolderError(
            f"cannot write checkpoint {folder.name} ({checkpoint.first_line(error)}; {free} MiB are free there); make "
            "room, or choose another place"
        ) from error


def _dtype(model: LocalModel) -> torch.dtype:
    """The one of all tensors of a folder.

    Raises:
        ModelError: when there are several.
    """
    files = open_weights(model.path, model.geometry, model.tensor_map)
    found = sorted({files.tensors[name].dtype for name in tensor_shapes(model.geometry, model.tensor_map)})
    if len(found) > 1:
        raise ModelError(f"{model.path} holds tensors of {' and '.join(found)}; convert them to one of them first")
    return TORCH_DTYPES[found[0]]
