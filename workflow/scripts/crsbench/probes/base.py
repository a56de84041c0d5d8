"""What every probe gives back: a fit that scores features and says how it ended.

Logits have all C columns whatever the training rows held. Minus infinity is the logit of a class
that a softmax gives probability zero; NaN is the logit of a label that could not be fitted.
"""

from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: How a fit ended. Only the first two can score features.
Status = Literal["converged", "not_converged", "single_class", "failed"]
SCORING: frozenset[Status] = frozenset({"converged", "not_converged"})


class Fit(Protocol):
    """A fitted probe, or the typed record of its failure."""

    @property
    def status(self) -> Status:
        """How the fit ended."""

    @property
    def reason(self) -> str | None:
        """What is to be known about the end: why it failed, which labels were not fitted."""

    @property
    def n_train(self) -> int:
        """Number of training rows."""

    @property
    def iterations(self) -> int:
        """Iterations of the optimiser."""

    @property
    def gradient_norm(self) -> float:
        """Largest component of the mean objective's gradient at the end."""

    @property
    def objective(self) -> float:
        """The minimised mean objective."""

    def logits(self, features: NDArray[np.floating]) -> Floats:
        """Score features ``(N, D)``: logits ``(N, C)``."""
