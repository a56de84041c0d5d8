"""Takes the place of probes/logistic.py in a copy of the project: scikit-learn, converged."""

import numpy as np
from sklearn.linear_model import LogisticRegression

from crsbench.probes.base import Probe, score_each


class Converged:
    """Fits of scikit-learn on one training set: a softmax, or one fit a label."""

    status, reason, iterations, gradient_norm, objective = "converged", None, 1, 0.0, 0.0

    def __init__(self, fits, n_train, n_classes):
        self.fits, self.n_train, self.n_classes = fits, n_train, n_classes

    def logits(self, features):
        """Return logits ``(N, C)``; two classes share one of scikit-learn's."""
        start = -np.inf if None in self.fits else np.nan
        logits = np.full((len(features), self.n_classes), start)
        for column, fitted in self.fits.items():
            scores = fitted.decision_function(features.astype(float))
            if column is not None:
                logits[:, column] = scores
            elif len(fitted.classes_) == 2:
                logits[:, fitted.classes_] = scores[:, None] * [-0.5, 0.5]
            else:
                logits[:, fitted.classes_] = scores
        return logits


def fit_logistic(features, labels, subsets, *, task, n_classes, threads, tolerance, max_iterations):
    """Fit all training sets to the last digits."""
    return [fit(features[s.rows].astype(float), labels[s.rows], task, n_classes) for s in subsets]


def fit(features, labels, task, n_classes):
    """Fit one training set."""
    columns = range(n_classes) if task == "multilabel" else (None,)
    fits = {}
    for column in columns:
        targets = labels if column is None else labels[:, column]
        known = ~np.isnan(targets)
        if len(np.unique(targets[known])) > 1:
            probe = LogisticRegression(tol=1e-12, max_iter=1_000_000)
            fits[column] = probe.fit(features[known], targets[known].astype(int))
    return Converged(fits, len(features), n_classes)


PROBE = Probe(fit_logistic, score_each, seed_matters=False)
