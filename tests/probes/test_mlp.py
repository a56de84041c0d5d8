"""The perceptron against a plain loop in PyTorch, and what must and must not change it."""

import numpy as np
import pytest
import torch
from scipy.special import softmax

from crsbench.digests import generator
from crsbench.probes.base import Subset
from crsbench.probes.mlp import PROBE, fit_mlp

SETTINGS = {
    "hidden": 16,
    "learning_rate": 1e-2,
    "weight_decay": 1e-2,
    "batch_size": 32,
    "epochs": 6,
}


@pytest.fixture
def rng():
    return np.random.default_rng(3)


@pytest.fixture
def classes(rng):
    """Features and class indices: 150 rows of 8 columns, 3 classes."""
    features = rng.standard_normal((150, 8)).astype(np.float32)
    return features, (features[:, :3] + rng.gumbel(size=(150, 3))).argmax(axis=1)


@pytest.fixture
def labels(rng):
    """Features and multi-label truth: 150 rows of 8 columns, 4 labels, a fifth masked."""
    features = rng.standard_normal((150, 8)).astype(np.float32)
    truth = (features[:, :4] + rng.logistic(size=(150, 4)) > 0.5).astype(float)
    truth[rng.random(truth.shape) < 0.2] = np.nan
    return features, truth


def whole(n, seed=0):
    return Subset(1.0, seed, np.arange(n))


def fit(features, labels, subsets, *, task="multiclass", n_classes=3, threads=1, **settings):
    return fit_mlp(
        features,
        labels,
        subsets,
        task=task,
        n_classes=n_classes,
        threads=threads,
        **SETTINGS | settings,
    )


def logits_of(fits, features):
    return np.stack([fitted.logits(features) for fitted in fits])


def plain_loop(features, labels, subset, loss, *, n_classes):
    """One fit as PyTorch's tutorials write it, with the probe's random numbers."""
    draw = generator("mlp initialisation", subset.seed)
    first, last = torch.nn.Linear(8, 16), torch.nn.Linear(16, n_classes)
    for layer in (first, last):
        bound = layer.in_features**-0.5
        weight = draw.uniform(-bound, bound, (layer.in_features, layer.out_features))
        layer.weight.data = torch.tensor(weight.T, dtype=torch.float32)
        bias = draw.uniform(-bound, bound, layer.out_features)
        layer.bias.data = torch.tensor(bias, dtype=torch.float32)
    module = torch.nn.Sequential(first, torch.nn.ReLU(), last)
    optimiser = torch.optim.AdamW(module.parameters(), lr=1e-2, weight_decay=1e-2)
    order = generator("mlp order", subset.seed)
    inputs, truth = torch.tensor(features[subset.rows]), torch.tensor(labels[subset.rows])
    for _ in range(6):
        for batch in torch.tensor(order.permutation(len(subset.rows))).split(32):
            optimiser.zero_grad()
            loss(module(inputs[batch]), truth[batch]).backward()
            optimiser.step()
    module.zero_grad()
    objective = loss(module(inputs), truth)
    objective.backward()
    gradient = max(parameter.grad.abs().max().item() for parameter in module.parameters())
    return module(torch.tensor(features)).detach().numpy(), objective.item(), gradient


def check_against_the_loop(features, labels, loss, *, task, n_classes):
    subset = Subset(0.5, 7, np.sort(np.random.default_rng(1).permutation(150)[:100]))
    (fitted,) = fit(features, labels, [subset], task=task, n_classes=n_classes)
    logits, objective, gradient = plain_loop(features, labels, subset, loss, n_classes=n_classes)
    np.testing.assert_allclose(fitted.logits(features), logits, atol=1e-4)
    assert fitted.objective == pytest.approx(objective, abs=1e-5)
    assert fitted.gradient_norm == pytest.approx(gradient, abs=1e-5)
    assert (fitted.status, fitted.reason, fitted.iterations) == ("completed", None, 6)
    assert fitted.n_train == 100


def test_classes_are_trained_as_a_plain_loop_trains_them(classes):
    check_against_the_loop(
        *classes, torch.nn.functional.cross_entropy, task="multiclass", n_classes=3
    )


def test_labels_are_trained_as_a_plain_loop_trains_them(labels):
    features, truth = labels
    rows = np.sort(np.random.default_rng(1).permutation(150)[:100])
    shares = torch.tensor(np.isfinite(truth[rows]).mean(axis=0))

    def loss(logits, targets):
        """Each label's own cross-entropies, over the rows of the batch, whatever is masked."""
        total = torch.tensor(0.0)
        for column in range(4):
            known = ~torch.isnan(targets[:, column])
            each = torch.nn.functional.binary_cross_entropy_with_logits(
                logits[known, column], targets[known, column].float(), reduction="sum"
            )
            total = total + (each / len(targets) / shares[column]).float()
        return total

    check_against_the_loop(features, truth, loss, task="multilabel", n_classes=4)


def test_exclusive_or_is_learnt(rng):
    features = rng.standard_normal((400, 2)).astype(np.float32)
    labels = (features[:, 0] * features[:, 1] > 0).astype(int)
    (fitted,) = fit(features, labels, [whole(400)], n_classes=2, epochs=40)
    assert (fitted.logits(features).argmax(axis=1) == labels).mean() > 0.95


def test_the_same_seed_gives_the_same_bytes_and_another_seed_another_fit(classes):
    features, labels = classes
    assert PROBE.seed_matters
    first, again, other = (
        fit(features, labels, [whole(150, seed)])[0].logits(features) for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.1


def test_a_fit_does_not_depend_on_those_beside_it_nor_on_threads(classes, rng):
    features, labels = classes
    halves = [Subset(0.5, seed, np.sort(rng.permutation(150)[:75])) for seed in range(5)]
    subsets = [*halves, Subset(0.1, 0, np.arange(40)), whole(150)]
    together = logits_of(fit(features, labels, subsets), features)
    alone = [fit(features, labels, [subset])[0].logits(features) for subset in subsets]
    np.testing.assert_allclose(together, alone, rtol=0, atol=1e-6)
    on_threads = logits_of(fit(features, labels, subsets, threads=3), features)
    np.testing.assert_allclose(together, on_threads, rtol=0, atol=1e-6)
    reversed_order = logits_of(fit(features, labels, subsets[::-1]), features)
    np.testing.assert_allclose(together, reversed_order[::-1], rtol=0, atol=1e-6)


def test_rows_outside_the_subset_have_no_influence(classes):
    features, labels = classes
    subset = Subset(0.1, 0, np.arange(50))
    (before,) = fit(features, labels, [subset])
    changed, relabelled = features.copy(), labels.copy()
    changed[50:], relabelled[50:] = 99, 0
    (after,) = fit(changed, relabelled, [subset])
    np.testing.assert_array_equal(before.logits(features), after.logits(features))


def test_a_row_whose_labels_are_all_masked_has_no_influence(labels):
    features, truth = labels
    truth[10] = np.nan
    (before,) = fit(features, truth, [whole(150)], task="multilabel", n_classes=4)
    features[10] = 50
    (after,) = fit(features, truth, [whole(150)], task="multilabel", n_classes=4)
    np.testing.assert_array_equal(before.logits(features), after.logits(features))


def test_an_absent_class_has_probability_zero_and_the_others_are_as_without_it(classes):
    features, labels = classes
    present = np.flatnonzero(labels < 2)
    (fitted,) = fit(features, labels, [Subset(0.5, 0, present)])
    p = softmax(fitted.logits(features), axis=1)
    assert (p[:, 2] == 0).all()
    assert (p[:, :2] > 0).all()
    assert np.isfinite(fitted.objective)


def test_a_label_with_one_value_is_not_fitted(labels):
    features, truth = labels
    truth[:, 2] = np.where(np.isnan(truth[:, 2]), np.nan, 0)
    (fitted,) = fit(features, truth, [whole(150)], task="multilabel", n_classes=4)
    scored = fitted.logits(features)
    assert np.isnan(scored[:, 2]).all()
    assert np.isfinite(scored[:, [0, 1, 3]]).all()
    assert fitted.status == "completed"


def test_one_class_only_is_typed_and_its_neighbours_go_on(classes):
    features, labels = classes
    subsets = [Subset(0.1, 0, np.flatnonzero(labels == 1)[:20]), Subset(0.1, 1, np.arange(20))]
    alone, other = fit(features, labels, subsets)
    assert alone.status == "single_class"
    assert "both values" in alone.reason
    assert np.isnan(alone.logits(features)).all()
    assert other.status == "completed"


def test_a_loss_that_is_not_finite_fails_alone(classes):
    features, labels = classes
    features[:20] *= 1e38
    subsets = [Subset(0.1, 0, np.arange(20)), Subset(0.1, 1, np.arange(20, 40))]
    broken, sound = fit(features, labels, subsets)
    assert (broken.status, sound.status) == ("failed", "completed")
    assert broken.reason == "the loss is not finite at the end of training"
    (alone,) = fit(features, labels, subsets[1:])
    np.testing.assert_allclose(sound.logits(features), alone.logits(features), atol=1e-6)


def test_fewer_rows_than_a_batch_are_one_batch(classes):
    features, labels = classes
    few = Subset(0.01, 0, np.arange(9))
    (small,) = fit(features, labels, [few])
    (large,) = fit(features, labels, [few], batch_size=9)
    np.testing.assert_allclose(small.logits(features), large.logits(features), atol=1e-6)


def test_the_threads_of_torch_are_as_before(classes):
    before = torch.get_num_threads()
    fit(*classes, [whole(150)], epochs=1)
    assert torch.get_num_threads() == before
