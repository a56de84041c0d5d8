"""Labels as problems of logistic regression: which classes are fitted, and by which loss."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crsbench.probes.base import Floats, held_classes
from crsbench.probes.losses import Binary, Softmax
from crsbench.splits import Task


@dataclass(frozen=True)
class Problem:
    """The loss of N rows as a function of K columns of logits.

    Attributes
    ----------
    loss
        Of the K columns.
    held
        ``(H,)`` the classes that the training rows can tell anything about.
    spread
        ``(K, H)`` the logits of the held classes, from the K columns.
    absent
        The intercept of all other classes.
    """

    loss: Softmax | Binary
    held: NDArray[np.intp]
    spread: Floats
    absent: float


def problem_of(labels: NDArray[Any], *, task: Task) -> Problem:
    """Return the problem of labels ``(N,)``, or ``(N, C)`` where the task is multi-label."""
    return _label_problem(labels) if task == "multilabel" else _class_problem(labels)


def _label_problem(labels: Floats) -> Problem:
    """One-vs-rest: each label that has both values over its unmasked rows."""
    both = held_classes(labels, task="multilabel", n_classes=labels.shape[1])
    held = np.flatnonzero(both)
    return Problem(Binary.of(labels[:, held]), held, np.eye(len(held)), np.nan)


def _class_problem(labels: NDArray[Any]) -> Problem:
    """Multinomial over the classes that occur; a single logit where two do."""
    held, indices = np.unique(labels, return_inverse=True)
    if len(held) == 2:
        loss = Binary.of(indices[:, None].astype(np.float64))
        return Problem(loss, held, np.array([[-0.5, 0.5]]), -np.inf)
    truth = (np.arange(len(held))[:, None] == indices).astype(np.float32)
    return Problem(Softmax(truth), held if len(held) > 1 else held[:0], np.eye(len(held)), -np.inf)
