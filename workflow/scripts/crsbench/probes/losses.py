r"""The two losses of logistic regression, on blocks of rows and in the precision of their logits.

K columns of logits are one softmax over K classes, or K labels of their own. A label is masked
where it is unknown: its row adds nothing there, and its mean is over the other rows.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logsumexp, softmax

from crsbench.probes.base import Floats


class Assessment(NamedTuple):
    """What a loss says of the logits of a block of rows.

    Attributes
    ----------
    losses
        ``(K,)`` summed losses in float64; those of a softmax stand in the first column.
    errors
        ``(K,)`` rows whose logits are not on the right side, in the same places.
    """

    losses: Floats
    errors: NDArray[np.int64]


@dataclass(frozen=True)
class Softmax:
    """Cross-entropy over K classes that all occur.

    Attributes
    ----------
    truth
        ``(N, K)`` of 1 and 0, float32.
    """

    truth: NDArray[np.float32]

    @property
    def n_problems(self) -> int:
        """One: the classes share their fit."""
        return 1

    @property
    def counts(self) -> Floats:
        """``(K,)`` rows in the mean of each column."""
        return np.full(self.truth.shape[1], float(len(self.truth)))

    def intercepts(self) -> Floats:
        """Return the best intercepts ``(K,)`` without features, which sum to 0."""
        logits = np.log(self._shares)
        return logits - logits.mean()

    @property
    def curvature(self) -> float:
        """Average curvature of the loss along one logit, at the start."""
        return float(np.mean(self._shares * (1 - self._shares)))

    def sharpen(self, gradients: Floats, _columns: NDArray[np.intp]) -> Floats:
        """Apply to ``(K, P)`` the inverse of the loss's curvature by the logits at the start.

        That is diag(p) - p p' for classes of shares p, inverted on the logits that sum to 0.
        """
        centred = gradients - gradients.mean(axis=0)
        centred /= self._shares[:, None]
        return centred - centred.mean(axis=0)

    def residuals(
        self, logits: NDArray[np.floating], rows: slice, _columns: NDArray[np.intp]
    ) -> NDArray[np.floating]:
        """Return the gradient of the summed loss by logits ``(n, K)``, which are overwritten."""
        logits -= logits.max(axis=1, keepdims=True)
        np.exp(logits, out=logits)
        logits /= logits.sum(axis=1, keepdims=True)
        logits -= self.truth[rows]
        return logits

    def probabilities(self, logits: Floats) -> Floats:
        """Return the probabilities of the classes for logits ``(K, N)``."""
        return softmax(logits, axis=0)

    def assess(self, logits: Floats, rows: slice, _columns: NDArray[np.intp]) -> Assessment:
        """Return losses and errors of logits ``(n, K)``."""
        losses, errors = np.zeros(logits.shape[1]), np.zeros(logits.shape[1], np.int64)
        of_truth = np.einsum("nk,nk->n", logits, self.truth[rows])
        losses[0] = np.sum(logsumexp(logits, axis=1) - of_truth)
        errors[0] = np.count_nonzero((logits >= of_truth[:, None]).sum(axis=1) > 1)
        return Assessment(losses, errors)

    @property
    def _shares(self) -> Floats:
        return self.truth.mean(axis=0, dtype=np.float64)


@dataclass(frozen=True)
class Binary:
    """Cross-entropies of K labels, each with both values.

    Attributes
    ----------
    against
        ``(N, K)`` float32: 1 where a positive logit is wrong, -1 where a negative one is, 0 where
        the label is masked.
    """

    against: NDArray[np.float32]

    @classmethod
    def of(cls, labels: NDArray[Any]) -> Self:
        """Take labels ``(N, K)`` of 1, 0, and NaN for masked."""
        return cls(np.where(np.isnan(labels), 0, 1 - 2 * labels).astype(np.float32))

    @property
    def n_problems(self) -> int:
        """One for each label."""
        return self.against.shape[1]

    @property
    def counts(self) -> Floats:
        """``(K,)`` rows in the mean of each column."""
        return np.count_nonzero(self.against, axis=0).astype(np.float64)

    def intercepts(self) -> Floats:
        """Return the best intercepts ``(K,)`` without features."""
        return np.log(self._shares / (1 - self._shares))

    @property
    def curvature(self) -> float:
        """Average curvature of the loss along one logit, at the start."""
        return float(np.mean(self._shares * (1 - self._shares)))

    def sharpen(self, gradients: Floats, columns: NDArray[np.intp]) -> Floats:
        """Divide ``(K, P)`` by the curvatures of their labels at the start."""
        shares = self._shares[columns]
        return gradients / (shares * (1 - shares))[:, None]

    def residuals(
        self, logits: NDArray[np.floating], rows: slice, columns: NDArray[np.intp]
    ) -> NDArray[np.floating]:
        """Return the gradient of the summed losses by logits ``(n, k)`` of some of the columns."""
        against = self.against[rows, columns]
        return against * expit(against * logits)

    def curvatures(self, logits: Floats) -> Floats:
        """Return the second derivatives ``(K, N)`` of the summed losses by logits ``(K, N)``."""
        p = expit(logits)
        return np.abs(self.against.T) * p * (1 - p)

    def assess(self, logits: Floats, rows: slice, columns: NDArray[np.intp]) -> Assessment:
        """Return losses and errors of logits ``(n, k)`` of some of the columns."""
        against = self.against[rows, columns]
        wrong = against * logits
        losses = np.abs(against) * np.logaddexp(0, wrong)
        errors = (against != 0) & (wrong >= 0)
        return Assessment(losses.sum(axis=0), np.count_nonzero(errors, axis=0))

    @property
    def _shares(self) -> Floats:
        return np.count_nonzero(self.against < 0, axis=0) / self.counts
