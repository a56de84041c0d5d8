"""At the sizes of the benchmark the fits are scikit-learn's (``make acceptance``).

Both are taken as far as float64 goes, at full labels of the train splits in
benchmarks/probe_shapes.py. Objective and gradient are computed in benchmarks/probe_fits.py from the
coefficients alone, by code that shares nothing with the solver.
"""

import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit, softmax
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from threadpoolctl import threadpool_limits

from crsbench.probes.logistic import fit_rows

pytestmark = pytest.mark.acceptance

ROOT = Path(__file__).parents[2]
MINI = ROOT.parent / "shared" / "mini"
HELD_OUT = 2_000
OURS = {"tolerance": 1e-12, "max_iterations": 100_000}
#: Its L-BFGS compares values, and ends at gradients of 1e-8; with this solver it goes all the way.
THEIRS = {"solver": "newton-cg", "tol": 1e-12, "max_iter": 1_000}


@pytest.fixture(scope="module")
def bench():
    """Return the benchmark's train splits, and what it computes from coefficients."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import probe_fits
        import probe_shapes
    finally:
        sys.path.pop(0)
    return probe_shapes, probe_fits


def scikit_learn(rows, targets):
    """Return weights and intercepts, as near to the optimum as rounding lets it come."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rounding may end its line search just before 1e-12
        oracle = LogisticRegression(**THEIRS).fit(rows, targets)
    return oracle.coef_.T, oracle.intercept_


def probabilities(rows, weights, intercepts):
    """Return ``(N, C)``: of all classes, or of the one label."""
    logits = rows @ weights + intercepts
    return expit(logits) if logits.shape[1] == 1 else softmax(logits, axis=1)


@pytest.mark.parametrize("source", ["synthetic", "real"])
@pytest.mark.parametrize("number", range(6))
def test_coefficients_probabilities_and_metrics_are_those_of_scikit_learn(bench, number, source):
    if source == "real" and not MINI.is_dir():
        pytest.skip("the small real images are not beside the project")
    shapes, fits = bench
    shape = shapes.SHAPES[number]._replace(source=source, columns=2)
    features, labels = shapes.make(shape._replace(n=shape.n + HELD_OUT), data_root=MINI)
    train, train_labels = features[: shape.n], labels[: shape.n]
    test, test_labels = features[shape.n :].astype(float), labels[shape.n :]
    with threadpool_limits(1):
        fitted = fit_rows(train, train_labels, task=shape.task, n_classes=shape.n_classes, **OURS)
    full = [each for each in fits.problems(shape, train_labels) if len(each.rows) > shape.n / 2]
    assert len(full) == (1 if shape.task == "multiclass" else 2)
    for part in full:
        rows = train[part.rows].astype(float)
        ours, theirs = fits.coefficients(fitted, part), scikit_learn(rows, part.targets)
        end, their_end = (fits.optimality(rows, part.targets, *each) for each in (ours, theirs))
        assert max(end.gradient_norm, their_end.gradient_norm) < 2e-11

        apart = np.abs(ours[0] - theirs[0]).max() / np.abs(theirs[0]).max()
        mine, other = (probabilities(test, *each) for each in (ours, theirs))
        p_apart = np.abs(mine - other).max()
        auroc_apart = []
        for place, column in enumerate(part.columns):
            truth = test_labels == column if shape.task == "multiclass" else test_labels[:, column]
            known = ~np.isnan(truth.astype(float))
            aurocs = [roc_auc_score(truth[known], p[known, place]) for p in (mine, other)]
            auroc_apart.append(abs(aurocs[0] - aurocs[1]))
        print(
            f"\n{shape}: gradients {end.gradient_norm:.0e} and {their_end.gradient_norm:.0e}, "
            f"objectives {abs(end.objective - their_end.objective):.0e} apart, coefficients "
            f"{apart:.0e} of the largest, probabilities {p_apart:.0e}, AUROC {max(auroc_apart):.0e}"
        )
        assert apart < 1e-6
        assert p_apart < 1e-6
        assert max(auroc_apart) < 1e-6
