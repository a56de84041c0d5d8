r"""Logistic regression with its products on a device of torch: one algorithm, another place.

Features, truth and the preconditioner's factor live on the device. L-BFGS, its vectors and the
diagnostics stay in NumPy: they are small, and travel once an evaluation. Block by block a product
in float64 needs no second copy of the features.

**Exactness.** Products in float32 are float32 throughout. TF32 rounds their factors to 11 bits, so
that the gradient would be that of other weights. Emulated, it let the descent end at 30 to 80 times
the default tolerance, after twice the iterations, and left the rest of the way to float64.

**Repeatability.** Of all operations the deterministic kind is asked for, and an operation without
one is an error. cuBLAS then promises the same bits for the same GPU model, version and one stream,
and one stream is all there is: fits are made one after the other.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from crsbench.errors import ConfigError, CrsBenchError
from crsbench.probes.base import Features, Floats
from crsbench.probes.cholesky import check_factor
from crsbench.probes.engines import Engine
from crsbench.probes.losses import Binary, Columns, Softmax
from crsbench.probes.objectives import (
    COVARIANCE_BLOCK,
    COVARIANCE_ROWS,
    ROUNDING,
    Covariance,
    LogisticObjective,
    Sums,
)

#: A block of rows has about this many numbers: 64 MB in float64.
_BLOCK = 2**23
#: Without it, set before cuBLAS starts, torch refuses to call cuBLAS deterministic.
_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"


def has_cuda() -> bool:
    """Return whether torch finds a GPU that it calls CUDA."""
    return torch.cuda.is_available()


def check_cuda() -> None:
    """Raise a `ConfigError` where `has_cuda` is false."""
    if not has_cuda():
        raise ConfigError(
            f"fitting.device: cuda is not available here (torch {torch.__version__} finds no GPU); "
            "set auto or cpu, or ask for a GPU with the job"
        )


def torch_engine(name: str) -> Engine:
    """Return the engine of a device of torch, which has float64: ``cuda`` or ``cpu``."""
    device = torch.device(name)
    full = f"cuda ({torch.cuda.get_device_name()})" if name == "cuda" else f"torch {name}"
    return Engine(
        full,
        objective=partial(DeviceObjective, device=device),
        scorer=partial(_scorer, device=device),
        exact=partial(exact_products, device),
        side_by_side=False,
    )


@contextmanager
def exact_products(device: torch.device) -> Iterator[None]:
    """Make products exact and repeatable, with one thread on the CPU.

    Raises
    ------
    CrsBenchError
        If the memory of the device does not suffice.
    """
    os.environ.setdefault(*_WORKSPACE)
    threads = torch.get_num_threads()
    precision = torch.get_float32_matmul_precision()
    debug_mode = torch.get_deterministic_debug_mode()
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("highest")
    # The same as use_deterministic_algorithms, which takes seconds to load torch's compiler.
    torch.set_deterministic_debug_mode("error")
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise CrsBenchError(
            f"the probe does not fit into the memory of {device} ({_line(error)}); run fewer "
            "jobs on it at a time, or set fitting.device to cpu"
        ) from error
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
        torch.set_deterministic_debug_mode(debug_mode)


def _line(error: Exception) -> str:
    return str(error).partition(". ")[0]


class _Sums(NamedTuple):
    """Sums of losses and errors ``(K,)``, as in `crsbench.probes.losses.Assessment`."""

    losses: torch.Tensor
    errors: torch.Tensor


class _Rows(Protocol):
    """A loss of N rows whose truth lives on the device, as in `crsbench.probes.losses`."""

    truth: torch.Tensor

    @staticmethod
    def residuals(logits: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
        """Return the gradient of the summed losses by logits ``(K, n)``."""

    @staticmethod
    def assess(logits: torch.Tensor, truth: torch.Tensor) -> _Sums:
        """Return losses and errors of logits ``(K, n)``."""


class _SoftmaxRows:
    def __init__(self, loss: Softmax, device: torch.device) -> None:
        self.truth = torch.as_tensor(loss.truth, device=device)

    @staticmethod
    def residuals(logits: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
        return logits.softmax(dim=0) - truth

    @staticmethod
    def assess(logits: torch.Tensor, truth: torch.Tensor) -> _Sums:
        of_truth = (logits * truth).sum(dim=0)
        not_below = (logits >= of_truth).sum(dim=0)
        first = torch.zeros(len(logits), dtype=torch.float64, device=logits.device)
        first[0] = 1
        loss = (logits.logsumexp(dim=0) - of_truth).sum()
        return _Sums(loss * first, (not_below > 1).sum() * first.long())


class _BinaryRows:
    def __init__(self, loss: Binary, device: torch.device) -> None:
        self.truth = torch.as_tensor(loss.against, device=device)

    @staticmethod
    def residuals(logits: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
        return truth * (truth * logits).sigmoid()

    @staticmethod
    def assess(logits: torch.Tensor, truth: torch.Tensor) -> _Sums:
        wrong = truth * logits
        losses = truth.abs() * torch.logaddexp(torch.zeros_like(wrong), wrong)
        return _Sums(losses.sum(dim=1), ((truth != 0) & (wrong >= 0)).sum(dim=1))


def _rows_of(loss: Softmax | Binary, device: torch.device) -> _Rows:
    return _SoftmaxRows(loss, device) if isinstance(loss, Softmax) else _BinaryRows(loss, device)


class _DeviceCovariance(Covariance):
    """`crsbench.probes.objectives.Covariance` on a device."""

    def __init__(self, rows: torch.Tensor, ridge: float) -> None:
        n_columns = rows.shape[1]
        some = rows[:: max(1, len(rows) // (COVARIANCE_ROWS * n_columns))]
        mean = torch.zeros(n_columns, dtype=torch.float64, device=rows.device)
        covariance = torch.zeros((n_columns, n_columns), device=rows.device)
        for block in some.split(COVARIANCE_BLOCK):
            mean += block.sum(dim=0, dtype=torch.float64)
            covariance += block.T @ block
        mean /= len(some)
        covariance /= len(some)
        covariance -= torch.outer(mean, mean).float()
        diagonal = covariance.diagonal()
        diagonal += ridge + ROUNDING * float(covariance.trace())
        self.mean = _received(mean)
        self._factor = _cholesky(covariance)

    def solve(self, vectors: Floats) -> Floats:
        sent = torch.as_tensor(vectors.T, device=self._factor.device).float()
        return _received(torch.cholesky_solve(sent, self._factor).T.double())


class DeviceObjective(LogisticObjective):
    """The objective of a loss and of features that live on a device.

    Parameters
    ----------
    features, loss
        As in `LogisticObjective`.
    device
        A device that has float64.
    """

    def __init__(self, features: Features, loss: Softmax | Binary, *, device: torch.device) -> None:
        self._device = device
        self._rows = torch.as_tensor(features, device=device)
        self._of_rows = _rows_of(loss, device)
        super().__init__(features, loss)

    def _factorised(self, ridge: float) -> Covariance:
        return _DeviceCovariance(self._rows, ridge)

    def _sums(self, weights: Floats, columns: Columns, precision: type[np.floating]) -> Sums:
        sent = torch.as_tensor(weights, device=self._device)
        gradients = torch.zeros_like(sent)
        losses = torch.zeros(len(sent), dtype=torch.float64, device=self._device)
        errors = torch.zeros(len(sent), dtype=torch.int64, device=self._device)
        kind = torch.float64 if precision is np.float64 else torch.float32
        slopes, intercepts = sent[:, :-1].to(kind), sent[:, -1:].to(kind)
        truth = self._of_rows.truth[columns]
        size = max(64, _BLOCK // self._rows.shape[1])
        blocks = zip(self._rows.split(size), truth.split(size, dim=1), strict=True)
        for block, of_block in blocks:
            wide = block.to(kind)
            logits = torch.addmm(intercepts, slopes, wide.T)
            if kind is torch.float64:
                assessed = self._of_rows.assess(logits, of_block)
                losses += assessed.losses
                errors += assessed.errors
            residuals = self._of_rows.residuals(logits, of_block)
            gradients[:, :-1] += residuals @ wide
            gradients[:, -1] += residuals.sum(dim=1, dtype=torch.float64)
        return Sums(_received(gradients), _received(losses), _received(errors))


def _scorer(
    coefficients: Floats, intercepts: Floats, *, device: torch.device
) -> Callable[[Features], Floats]:
    slopes = torch.as_tensor(coefficients, device=device)
    constants = torch.as_tensor(intercepts, device=device)

    def score(features: Features) -> Floats:
        sent = torch.as_tensor(features, device=device).double()
        return _received(torch.addmm(constants, sent, slopes))

    return score


def _cholesky(matrix: torch.Tensor) -> torch.Tensor:
    """Return the lower factor; what has none is the error of `crsbench.probes.cholesky`."""
    factor, first_bad = torch.linalg.cholesky_ex(matrix)
    check_factor(int(first_bad))
    return factor


def _received(tensor: torch.Tensor) -> NDArray[Any]:
    received: NDArray[Any] = tensor.cpu().numpy()
    return received
