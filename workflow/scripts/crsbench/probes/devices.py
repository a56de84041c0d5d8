"""Which engine fits the logistic probe of a cell: NumPy's, or that of a GPU.

torch is imported only where there may be a GPU and a cell is worth it: its start takes seconds.
"""

import os
from pathlib import Path

from crsbench.probes.engines import NUMPY, Engine

#: Numbers in a training matrix below which all fits of a cell take a core about as long as torch
#: and a GPU take to start: some seconds.
_WORTH_A_GPU = 2**23
#: What a machine has whose GPUs torch may call CUDA: of NVIDIA, AMD, and Windows under Linux.
_DRIVERS = tuple(map(Path, ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")))


def chosen_engine(device: str, n_numbers: int) -> Engine:
    """Return the engine for a cell.

    Parameters
    ----------
    device
        ``cpu``; ``cuda``; or ``auto``: CUDA where there is one and the cell is large, else the CPU.
    n_numbers
        Rows times columns of the training features.

    Raises
    ------
    ConfigError
        If ``cuda`` is asked for and is not here.
    """
    if device == "cuda":
        return _on_cuda()
    worth_asking = device == "auto" and n_numbers >= _WORTH_A_GPU and _may_have_a_gpu()
    return _on_cuda_if_present() if worth_asking else NUMPY


def _may_have_a_gpu() -> bool:
    """Return False only where torch would find none."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    return not hidden and any(driver.exists() for driver in _DRIVERS)


def _on_cuda() -> Engine:
    from crsbench.probes.on_device import check_cuda, torch_engine

    check_cuda()
    return torch_engine("cuda")


def _on_cuda_if_present() -> Engine:
    from crsbench.probes.on_device import has_cuda, torch_engine

    return torch_engine("cuda") if has_cuda() else NUMPY
