"""The forward pass: device, floating-point type, and batches that fit into memory.

Out of memory halves the batch, never the image. Whatever the device, arithmetic in float32 is exact
float32 (no TF32), and a pass on the CPU uses one thread.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from threading import Lock

import numpy as np
import torch

from crsbench.encoders.weights import LoadedEncoder, depth_function
from crsbench.errors import ConfigError, CrsBenchError


class Forward:
    """From batches (N, C, h, w) to features.

    Parameters
    ----------
    encoder
        A loaded encoder; its card says the floating-point type.
    depth_indices
        Zero-based blocks of the depth features, the last of which gives the feature itself; none
        for the feature alone.
    batch_size
        Images in one pass, to begin with.
    device
        Name of the device, or ``auto``.
    """

    def __init__(
        self, encoder: LoadedEncoder, *, depth_indices: Sequence[int], batch_size: int, device: str
    ) -> None:
        self.name = encoder.card.name
        self.device = chosen_device(device)
        self.dtype = getattr(torch, encoder.card.dtype)
        self.batch_size = batch_size
        self.turn = nullcontext() if self.device.type == "cpu" else Lock()
        module = encoder.module.to(device=self.device, dtype=self.dtype)
        self.module = module.to(memory_format=torch.channels_last)
        self.depth_indices = depth_indices
        self.at_depths = depth_function(encoder.card) if depth_indices else None

    def __call__(self, batch: torch.Tensor) -> np.ndarray:
        """Return float32 features (K, N, D): at each depth, or K = 1."""
        with self.turn:
            return self._in_parts(batch)

    def _in_parts(self, batch: torch.Tensor) -> np.ndarray:
        parts = []
        start = 0
        while start < len(batch):
            part = batch[start : start + self.batch_size]
            try:
                parts.append(self._features(part))
                start += len(part)
            except RuntimeError as error:
                self._halve(len(part), error)
        return np.concatenate(parts, axis=1)

    def _features(self, batch: torch.Tensor) -> np.ndarray:
        with torch.inference_mode():
            moved = batch.to(
                device=self.device, dtype=self.dtype, memory_format=torch.channels_last
            )
            if self.at_depths is None:
                features = [self.module(moved)]
            else:
                features = self.at_depths(self.module, moved, self.depth_indices)
            return torch.stack(features).float().cpu().numpy()

    def _halve(self, size: int, error: RuntimeError) -> None:
        if not _is_out_of_memory(error):
            raise error
        if size == 1:
            raise CrsBenchError(
                f"{self.name}: one image alone does not fit into the memory of {self.device}; "
                "use a device with more memory (the input size is part of the encoder)"
            ) from error
        self.batch_size = size // 2
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def _is_out_of_memory(error: RuntimeError) -> bool:
    words = ("out of memory", "can't allocate memory", "not enough memory")
    return isinstance(error, torch.OutOfMemoryError) or any(w in str(error) for w in words)


@contextmanager
def one_thread_per_pass() -> Iterator[None]:
    """Make forward passes single-threaded, also in workers started inside, and exact float32."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
            yield
    finally:
        torch.set_num_threads(before)


def chosen_device(name: str) -> torch.device:
    """Return the device of that name; ``auto`` is CUDA where there is one, else MPS, else CPU."""
    present = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        return torch.device(next(kind for kind, here in present.items() if here))
    if not present.get(name, False):
        here = ", ".join(kind for kind, here in present.items() if here)
        raise ConfigError(f"extraction.device: {name} is not available here; available: {here}")
    return torch.device(name)
