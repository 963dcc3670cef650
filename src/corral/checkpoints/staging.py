"""A copy of what this rank writes, in memory that is kept from save to save; training may continue after it.

Imports torch. Only the pieces that the plan gives to this rank are copied: of a replicated state each rank copies its
part, not all of it. From a GPU the copy goes to pinned memory, on a stream of its own.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Staged:
    """The bytes of a piece. ``owner`` keeps their memory."""

    name: str
    content: memoryview
    place: tuple[int, ...] | None
    shape: tuple[int, ...] | None
    owner: Any


class Staging:
    def __init__(self) -> None:
        self._buffers: dict[Any, torch.Tensor] = {}
        self._streams: dict[torch.device, Any] = {}

    def copy(self, items: list[Any], planner: Any) -> list[Staged]:
        """The pieces of the plan ``items``, unaffected by what training does after this returns."""
        used: set[torch.device] = set()
        staged = [self._copy(item, planner.resolve_data(item), used) for item in items]
        for device in used:
            self._streams[device].synchronize()
        return staged

    def _copy(self, item: Any, data: Any, used: set[torch.device]) -> Staged:
        if not isinstance(data, torch.Tensor):
            return Staged(item.index.fqn, data.getbuffer(), None, None, data)
        data = data.detach()
        buffer = self._buffer((item.index.fqn, item.index.offset), data)
        if data.is_cuda:
            used.add(data.device)
            stream = self._stream(data.device)
            with torch.cuda.stream(stream):
                buffer.copy_(data, non_blocking=True)
        else:
            buffer.copy_(data)
        chunk = item.tensor_data.chunk
        return Staged(item.index.fqn, bytes_of(buffer), tuple(chunk.offsets), tuple(chunk.sizes), buffer)

    def _buffer(self, key: Any, data: torch.Tensor) -> torch.Tensor:
        held = self._buffers.get(key)
        if held is None or held.shape != data.shape or held.dtype != data.dtype:
            held = torch.empty(data.shape, dtype=data.dtype, pin_memory=data.is_cuda)
            self._buffers[key] = held
        return held

    def _stream(self, device: torch.device) -> Any:
        """What was computed before the save is in the copy."""
        stream = self._streams.get(device)
        if stream is None:
            stream = self._streams[device] = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        return stream


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous tensor on the CPU, of any type, without a copy. The tensor must outlive it."""
    size = tensor.numel() * tensor.element_size()
    if not size:
        return memoryview(b"")
    return memoryview((ctypes.c_char * size).from_address(tensor.data_ptr())).cast("B")
