r"""The two losses of logistic regression, on blocks of rows and in the precision of their logits.

K rows of logits are one softmax over K classes, or K labels of their own. A label is masked
where it is unknown: its sample adds nothing there, and its mean is over the other samples.

Logits are ``(B, K, n)``: B pieces of n consecutive samples each, the classes or labels between.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from crsbench.probes.base import Floats

#: Classes or labels: all of them, or the numbers of some.
Columns = slice | NDArray[np.intp]


class Assessment(NamedTuple):
    """What a loss says of the logits of a block of samples.

    Attributes
    ----------
    losses
        ``(K,)`` summed losses in float64; those of a softmax stand in the first place.
    errors
        ``(K,)`` samples whose logits are not on the right side, in the same places.
    """

    losses: Floats
    errors: NDArray[np.int64]


@dataclass(frozen=True)
class Softmax:
    """Cross-entropy over K classes that all occur.

    Attributes
    ----------
    truth
        ``(K, N)`` of 1 and 0, float32.
    """

    truth: NDArray[np.float32]

    @property
    def n_problems(self) -> int:
        """One: the classes share their fit."""
        return 1

    @cached_property
    def counts(self) -> Floats:
        """``(K,)`` samples in the mean of each class."""
        return np.full(len(self.truth), float(self.truth.shape[1]))

    def intercepts(self) -> Floats:
        """Return the best intercepts ``(K,)`` without features, which sum to 0."""
        logits = np.log(self._shares)
        return logits - logits.mean()

    @cached_property
    def curvature(self) -> float:
        """Average curvature of the loss along one logit, at the start."""
        return float(np.mean(self._shares * (1 - self._shares)))

    def sharpen(self, gradients: Floats, _columns: Columns) -> Floats:
        """Apply to ``(K, P)`` the inverse of the loss's curvature by the logits at the start.

        That is diag(p) - p p' for classes of shares p, inverted on the logits that sum to 0.
        """
        centred = self.centred(gradients)
        centred /= self._shares[:, None]
        return self.centred(centred)

    @staticmethod
    def centred(vectors: Floats) -> Floats:
        """Return vectors ``(K, P)`` less what all classes share, which no probability notices."""
        return vectors - vectors.sum(axis=0) / len(vectors)

    def residuals(
        self, logits: NDArray[np.floating], samples: slice, _columns: Columns
    ) -> NDArray[np.floating]:
        """Return the gradient of the summed loss by logits ``(B, K, n)``, which are overwritten."""
        self._to_probabilities(logits)
        logits -= _pieces(self.truth[:, samples], logits)
        return logits

    def curvatures(self, logits: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return the second derivatives of the summed loss by logits ``(B, K, n)`` alone."""
        p = logits.copy()
        self._to_probabilities(p)
        return p * (1 - p)

    @staticmethod
    def _to_probabilities(logits: NDArray[np.floating]) -> None:
        logits -= logits.max(axis=1, keepdims=True)
        np.exp(logits, out=logits)
        logits /= logits.sum(axis=1, keepdims=True)

    def assess(self, logits: Floats, samples: slice, _columns: Columns) -> Assessment:
        """Return losses and errors of logits ``(B, K, n)``."""
        n_classes = logits.shape[1]
        losses, errors = np.zeros(n_classes), np.zeros(n_classes, np.int64)
        of_truth = np.einsum("bkn,bkn->bn", logits, _pieces(self.truth[:, samples], logits))
        above = logits - of_truth[:, None]
        highest = above.max(axis=1)
        sums = np.exp(above - highest[:, None]).sum(axis=1)
        losses[0] = np.sum(highest + np.log(sums))
        errors[0] = np.count_nonzero(np.count_nonzero(above >= 0, axis=1) > 1)
        return Assessment(losses, errors)

    @cached_property
    def _shares(self) -> Floats:
        return self.truth.mean(axis=1, dtype=np.float64)


@dataclass(frozen=True)
class Binary:
    """Cross-entropies of K labels, each with both values.

    Attributes
    ----------
    against
        ``(K, N)`` float32: 1 where a positive logit is wrong, -1 where a negative one is, 0 where
        the label is masked.
    """

    against: NDArray[np.float32]

    @classmethod
    def of(cls, labels: NDArray[Any]) -> Self:
        """Take labels ``(N, K)`` of 1, 0, and NaN for masked."""
        against = np.where(np.isnan(labels), 0, 1 - 2 * labels)
        return cls(np.ascontiguousarray(against.T, dtype=np.float32))

    @property
    def n_problems(self) -> int:
        """One for each label."""
        return len(self.against)

    @cached_property
    def counts(self) -> Floats:
        """``(K,)`` samples in the mean of each label."""
        return np.count_nonzero(self.against, axis=1).astype(np.float64)

    def intercepts(self) -> Floats:
        """Return the best intercepts ``(K,)`` without features."""
        return np.log(self._shares / (1 - self._shares))

    @cached_property
    def curvature(self) -> float:
        """Average curvature of the loss along one logit, at the start."""
        return float(np.mean(self._shares * (1 - self._shares)))

    def sharpen(self, gradients: Floats, columns: Columns) -> Floats:
        """Divide ``(k, P)`` by the curvatures of their labels at the start."""
        shares = self._shares[columns]
        return gradients / (shares * (1 - shares))[:, None]

    @staticmethod
    def centred(vectors: Floats) -> Floats:
        """Return vectors ``(k, P)`` as they are: labels share nothing."""
        return vectors

    def residuals(
        self, logits: NDArray[np.floating], samples: slice, columns: Columns
    ) -> NDArray[np.floating]:
        """Return the gradient of the summed losses by logits ``(B, k, n)`` of some labels.

        The logits are overwritten. (1 + tanh(z / 2)) / 2 is the logistic function, and faster.
        """
        half = _pieces(self.against[columns, samples], logits) * logits.dtype.type(0.5)
        logits *= half
        np.tanh(logits, out=logits)
        logits += 1
        logits *= half
        return logits

    def curvatures(self, logits: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return the second derivatives of the summed losses by logits ``(B, K, n)``."""
        unmasked = _pieces(np.abs(self.against), logits)
        return 0.25 * unmasked * (1 - np.tanh(0.5 * logits) ** 2)

    def assess(self, logits: Floats, samples: slice, columns: Columns) -> Assessment:
        """Return losses and errors of logits ``(B, k, n)`` of some of the labels."""
        against = _pieces(self.against[columns, samples], logits)
        wrong = against * logits
        losses = np.abs(against) * (np.maximum(wrong, 0) + np.log1p(np.exp(-np.abs(wrong))))
        errors = (against != 0) & (wrong >= 0)
        return Assessment(losses.sum(axis=(0, 2)), np.count_nonzero(errors, axis=(0, 2)))

    @cached_property
    def _shares(self) -> Floats:
        return np.count_nonzero(self.against < 0, axis=1) / self.counts


def _pieces(values: NDArray[Any], logits: NDArray[Any]) -> NDArray[Any]:
    """Return values ``(K, B n)`` in the shape ``(B, K, n)`` of logits."""
    n_pieces, n_columns, size = logits.shape
    return values.reshape(n_columns, n_pieces, size).swapaxes(0, 1)
