"""A cell's 400 evaluations: AUROC and average precision, ours against a loop of scikit-learn's."""

import numpy as np
from sklearn.metrics import average_precision_score, roc_auc_score

from crsbench.metrics import auroc, average_precision, rank
from crsbench.probes.base import Floats
from timing import medians, timed

N_EVALUATIONS, N_SAMPLES, N_CLASSES = 400, 5_066, 8
#: Evaluations that the loop is timed on in each round.
N_LOOPED = 40


def metrics_line(rounds: int = 3) -> str:
    """Return what the evaluations take, and by how much the results differ."""
    rng = np.random.default_rng(0)
    truth = np.eye(N_CLASSES)[rng.integers(0, N_CLASSES, N_SAMPLES)]
    sets = [truth + rng.standard_normal(truth.shape) for _ in range(N_EVALUATIONS)]
    ours, looped = medians(
        [
            lambda: timed(lambda: [ranked(scores, truth) for scores in sets])[0],
            lambda: timed(lambda: [loop(scores, truth) for scores in sets[:N_LOOPED]])[0],
        ],
        rounds=rounds,
    )
    looped *= N_EVALUATIONS / N_LOOPED
    difference = max(np.abs(ranked(s, truth) - loop(s, truth)).max() for s in sets[:N_LOOPED])
    return (
        f"{N_EVALUATIONS} evaluations of {N_SAMPLES:,} samples and {N_CLASSES} classes, AUROC and "
        f"average precision of each class: {ours:.2f} s; a loop over roc_auc_score and "
        f"average_precision_score {looped:.1f} s (timed on {N_LOOPED}), ratio {looped / ours:.1f}, "
        f"largest difference {difference:.0e}."
    )


def ranked(scores: Floats, truth: Floats) -> Floats:
    """Return AUROC and average precision ``(2, C)`` from one sort a class."""
    ranking = rank(scores, truth)
    return np.stack([auroc(ranking), average_precision(ranking)])


def loop(scores: Floats, truth: Floats) -> Floats:
    """Return the same from scikit-learn."""
    columns = list(zip(truth.T, scores.T, strict=True))
    metrics = roc_auc_score, average_precision_score
    return np.array([[metric(*column) for column in columns] for metric in metrics])
