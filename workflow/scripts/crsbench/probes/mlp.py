r"""The perceptron probe: one hidden layer of ReLU units, trained by AdamW for a fixed budget.

**Objective.** The mean cross-entropy of a softmax over the classes that occur, or for multi-label
data the sum over labels of the mean binary cross-entropy of the label's own unmasked rows. There is
no penalty but AdamW's weight decay, which acts on all parameters, as it does in PyTorch.

**Randomness.** Weights and biases start uniform within :math:`\pm 1 / \sqrt{\text{inputs}}`, and
each epoch goes through the rows in a new order; both follow from the seed, whatever the cell and
the fraction. So two seeds differ even where their rows do not.

**Side by side.** Fits with equally many rows are trained in one batch of matrix products. Nothing
passes from one to another: each product, sum and step is that of one fit alone. A batch has one
thread, since the order of a sum could depend on more; several threads take several batches.

**Budget.** The number of epochs is fixed, and the status after them `completed`. Gradient and
objective at the end are those of all training rows. A loss that is not finite then is `failed`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from crsbench.arrays import Bools
from crsbench.digests import generator
from crsbench.probes.base import (
    ONE_VALUE,
    Features,
    Floats,
    Probe,
    Status,
    Subset,
    held_classes,
    score_each,
)
from crsbench.splits import Task

Rows = NDArray[np.int64]
#: Logits ``(S, B, C)`` of the rows ``(S, B)`` of S fits to the mean loss of each, ``(S,)``.
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

#: Rows of a fit whose loss is taken at once at the end.
_ROWS_AT_ONCE = 2048


@dataclass(frozen=True)
class Training:
    """How a perceptron is trained: the settings ``mlp``."""

    hidden: int
    learning_rate: float
    weight_decay: float
    batch_size: int
    epochs: int


class Layers(NamedTuple):
    """Weights ``(D, H)``, bias ``(1, H)``, ``(H, C)`` and ``(1, C)``; for S fits ``(S, …)``."""

    hidden_weights: Any
    hidden_bias: Any
    weights: Any
    bias: Any


@dataclass(frozen=True)
class MlpFit:
    """A trained perceptron; see `crsbench.probes.base.Fit`.

    Attributes
    ----------
    layers
        Arrays in float32. A bias of the logits is minus infinity where no training row has the
        class, NaN where a label was not fitted.
    objective
        The mean loss at the end; for multi-label data the sum over the fitted labels.
    """

    layers: Layers
    status: Status
    reason: str | None
    n_train: int
    iterations: int
    gradient_norm: float
    objective: float

    def logits(self, features: NDArray[np.floating]) -> Floats:
        """Score features ``(N, D)``: logits ``(N, C)``."""
        first = np.asarray(features, np.float32) @ self.layers.hidden_weights
        hidden = np.maximum(first + self.layers.hidden_bias, 0)
        return (hidden @ self.layers.weights + self.layers.bias).astype(np.float64)


def fit_mlp(
    features: Features,
    labels: NDArray[Any],
    subsets: Sequence[Subset],
    *,
    task: Task,
    n_classes: int,
    threads: int,
    **settings: Any,
) -> list[MlpFit]:
    """Train one perceptron a subset; see `crsbench.probes.base.Probe`.

    Parameters
    ----------
    settings
        Those of `Training`.
    """
    cell = _Cell(features, labels, task, n_classes, Training(**settings))
    fits = {place: cell.unfitted(subset) for place, subset in enumerate(subsets)}
    trainable = [place for place, subset in enumerate(subsets) if cell.held(subset).any()]
    packs = _packs({place: len(subsets[place].rows) for place in trainable}, threads=threads)
    with _one_thread_a_batch(), ThreadPoolExecutor(threads) as pool:
        trained = pool.map(cell.fit, [[subsets[place] for place in pack] for pack in packs])
        for pack, of_pack in zip(packs, trained, strict=True):
            fits |= dict(zip(pack, of_pack, strict=True))
    return list(fits.values())


def _packs(n_rows: Mapping[int, int], *, threads: int) -> list[list[int]]:
    """Put the fits of equally many rows together, a share for each thread; the long ones first."""
    packs = []
    for n in sorted(set(n_rows.values()), reverse=True):
        equal = [place for place, other in n_rows.items() if other == n]
        size = -(-len(equal) // threads)
        packs += [equal[first : first + size] for first in range(0, len(equal), size)]
    return packs


@contextmanager
def _one_thread_a_batch() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class _Cell:
    """What the fits of a cell share; features and labels as in `fit_mlp`."""

    features: Features
    labels: NDArray[Any]
    task: Task
    n_classes: int
    training: Training

    def held(self, subset: Subset) -> Bools:
        """Return the classes that a subset tells anything about, ``(C,)``."""
        labels = self.labels[subset.rows]
        return held_classes(labels, task=self.task, n_classes=self.n_classes)

    def unfitted(self, subset: Subset) -> MlpFit:
        """Return what becomes of a subset with one class only."""
        shapes = (self.features.shape[1], 0), (1, 0), (0, self.n_classes), (1, self.n_classes)
        layers = Layers(*(np.full(shape, np.nan, np.float32) for shape in shapes))
        n_rows = len(subset.rows)
        return MlpFit(layers, "single_class", ONE_VALUE, n_rows, 0, np.nan, np.nan)

    def fit(self, subsets: Sequence[Subset]) -> list[MlpFit]:
        """Fit subsets of equally many rows, none of them with one class only."""
        rows = np.stack([subset.rows for subset in subsets])
        held = np.stack([self.held(subset) for subset in subsets])
        seeds = [subset.seed for subset in subsets]
        layers = _initial_layers(
            seeds, self.features.shape[1], self.training.hidden, self.n_classes
        )
        loss = self._loss(rows, held)
        self._train(layers, loss, rows, seeds)
        ends = zip(_unstacked(layers), held, *self._final(layers, loss, rows), strict=True)
        return [self._finished(*end, n_train=rows.shape[1]) for end in ends]

    def _loss(self, rows: Rows, held: Bools) -> Loss:
        if self.task == "multilabel":
            return _label_loss(self.labels, rows, held)
        return _class_loss(self.labels, held)

    def _train(self, layers: Layers, loss: Loss, rows: Rows, seeds: Sequence[int]) -> None:
        """Train the layers in place."""
        training, n = self.training, rows.shape[1]
        optimiser = torch.optim.AdamW(
            layers, lr=training.learning_rate, weight_decay=training.weight_decay, fused=True
        )
        orders = [generator("mlp order", seed) for seed in seeds]
        for _ in range(training.epochs):
            places = np.stack([order.permutation(n) for order in orders])
            shuffled = np.take_along_axis(rows, places, axis=1)
            for first in range(0, n, training.batch_size):
                batch = shuffled[:, first : first + training.batch_size]
                optimiser.zero_grad()
                self._losses(layers, loss, batch).sum().backward()
                optimiser.step()

    def _losses(self, layers: Layers, loss: Loss, batch: Rows) -> torch.Tensor:
        inputs = torch.from_numpy(self.features[batch])
        hidden = torch.baddbmm(layers.hidden_bias, inputs, layers.hidden_weights).relu()
        logits = torch.baddbmm(layers.bias, hidden, layers.weights)
        return loss(logits, torch.from_numpy(batch))

    def _final(self, layers: Layers, loss: Loss, rows: Rows) -> tuple[Floats, Floats]:
        """Return each fit's loss over all its rows, and the largest component of its gradient."""
        total = np.zeros(len(rows))
        for layer in layers:
            layer.grad = None
        for first in range(0, rows.shape[1], _ROWS_AT_ONCE):
            some = rows[:, first : first + _ROWS_AT_ONCE]
            losses = self._losses(layers, loss, some) * (some.shape[1] / rows.shape[1])
            losses.sum().backward()
            total += losses.detach().numpy()
        largest = [layer.grad.abs().flatten(1).amax(dim=1).numpy() for layer in layers]
        return total, np.max(largest, axis=0).astype(np.float64)

    def _finished(
        self, layers: Layers, held: Bools, objective: float, gradient_norm: float, *, n_train: int
    ) -> MlpFit:
        absent = np.nan if self.task == "multilabel" else -np.inf
        finite = np.isfinite(objective) and np.isfinite(gradient_norm)
        return MlpFit(
            layers._replace(bias=np.where(held, layers.bias, np.float32(absent))),
            status="completed" if finite else "failed",
            reason=None if finite else "the loss is not finite at the end of training",
            n_train=n_train,
            iterations=self.training.epochs,
            gradient_norm=float(gradient_norm),
            objective=float(objective),
        )


def _initial_layers(seeds: Sequence[int], n_inputs: int, n_hidden: int, n_classes: int) -> Layers:
    """Draw the layers of each seed, uniform within 1 / sqrt(inputs) as PyTorch's linear layers."""
    shapes = [(n_inputs, n_hidden), (1, n_hidden), (n_hidden, n_classes), (1, n_classes)]
    draws = [generator("mlp initialisation", seed) for seed in seeds]
    stacks = []
    for shape, bound in zip(shapes, np.repeat([n_inputs, n_hidden], 2) ** -0.5, strict=True):
        stack = np.stack([draw.uniform(-bound, bound, shape) for draw in draws])
        stacks.append(torch.from_numpy(stack.astype(np.float32)).requires_grad_())
    return Layers(*stacks)


def _class_loss(labels: NDArray[Any], held: Bools) -> Loss:
    """Cross-entropy of the softmax over the held classes ``(S, C)``."""
    truth = torch.from_numpy(labels.astype(np.int64))
    absent = torch.zeros(held.shape).masked_fill(torch.from_numpy(~held), -torch.inf)[:, None]

    def losses(logits: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        flat = (logits + absent).flatten(0, 1)
        each = cross_entropy(flat, truth[rows].flatten(), reduction="none")
        return each.view(rows.shape).mean(dim=1)

    return losses


def _label_loss(labels: Floats, rows: Rows, held: Bools) -> Loss:
    """Binary cross-entropies of the held labels, each over its own unmasked rows."""
    known = ~np.isnan(labels)
    truth = torch.from_numpy(np.where(known, labels, 0).astype(np.float32))
    n_known = np.maximum(np.count_nonzero(known[rows], axis=1), 1)
    per_row = torch.from_numpy((held * rows.shape[1] / n_known).astype(np.float32))[:, None]
    counts = torch.from_numpy(known.astype(np.float32))

    def losses(logits: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        each = binary_cross_entropy_with_logits(logits, truth[rows], reduction="none")
        return (each * counts[rows] * per_row).sum(dim=2).mean(dim=1)

    return losses


def _unstacked(layers: Layers) -> list[Layers]:
    arrays = [layer.detach().numpy() for layer in layers]
    return [Layers(*own) for own in zip(*arrays, strict=True)]


PROBE = Probe(fit=fit_mlp, score=score_each, seed_matters=True)
