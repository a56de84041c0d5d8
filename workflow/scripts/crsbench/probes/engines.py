"""Where the products of logistic regression are computed: what an engine offers, and NumPy's.

The algorithm, its stop and its diagnostics are the same whatever the engine, and the fits agree
within the tolerance that ended them. `crsbench.probes.on_device` has the engine of a GPU.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np

from crsbench.probes.base import Features, Floats
from crsbench.probes.objectives import LogisticObjective


@dataclass(frozen=True)
class Engine:
    """A place to compute products.

    Attributes
    ----------
    name
        As it is recorded.
    objective
        ``objective(features, loss)`` makes a `LogisticObjective`, for no fewer rows
        than columns.
    scorer
        ``scorer(coefficients, intercepts)`` of ``(D, M)`` and ``(M,)`` returns what scores
        features ``(n, D)``, in float64: logits ``(n, M)``.
    exact
        Opens a context, outside all threads, in which products are exact and repeatable.
    side_by_side
        Whether wide fits run on several threads; where not, those with few rows have one, too.
    """

    name: str
    objective: Callable[..., LogisticObjective]
    scorer: Callable[[Floats, Floats], Callable[[Features], Floats]]
    exact: Callable[[], AbstractContextManager[None]]
    side_by_side: bool


def _scorer(coefficients: Floats, intercepts: Floats) -> Callable[[Features], Floats]:
    def score(features: Features) -> Floats:
        return features.astype(np.float64) @ coefficients + intercepts

    return score


NUMPY = Engine("cpu", LogisticObjective, _scorer, nullcontext, side_by_side=True)
