"""Settings of the analyses: what cannot be made is refused before anything runs."""

from pathlib import Path

import pytest
from panel_oracle import WEIGHTS

from crsbench.config import Source, check_settings, merge_all, read_source
from crsbench.crs import Weights
from crsbench.errors import ConfigError

ROOT = Path(__file__).parents[1]
BASE = read_source(ROOT / "config" / "config.yaml")
ALL = ("bootstrap", "case_bootstrap", "validity")


def check(**over):
    user = Source("mine.yaml", over)
    return check_settings(merge_all([BASE, user]), [BASE, user])


def test_by_default_all_are_made_as_often_as_in_the_paper():
    settings = check()
    assert settings.analyses == ALL
    assert settings.resampling.seed_replicates == 10_000
    assert settings.validity.panel_sizes == (12, 10)


def test_any_selection_is_possible_also_none():
    assert check(analyses=[]).analyses == ()
    assert check(analyses=["validity"]).analyses == ("validity",)


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ({"analyses": ["jackknife"]}, r"analyses\.0: Input should be 'bootstrap', 'case_bootstr"),
        ({"analyses": ["validity", "validity"]}, r"analyses: validity selected more than once"),
        ({"resampling": {"case_replicates": 0}}, r"resampling\.case_replicates: .*greater than 0"),
        ({"resampling": {"seed_draws": []}}, r"resampling\.seed_draws: .*at least 1 in the list"),
        ({"resampling": {"seed_draws": ["all"]}}, r"'paired', 'exact' or 'per_dataset', got 'all'"),
        ({"validity": {"panel_sizes": [1]}}, r"validity\.panel_sizes\.0: .*greater than 1"),
        ({"seeds": list(range(11))}, r"seed_draws: exact is possible with 10 seeds or fewer, not"),
        (
            {"robustness_fractions": [0.1, 1.0]},
            r"analyses: bootstrap, case_bootstrap cannot be made unless robustness_fractions is",
        ),
    ],
)
def test_a_wrong_or_impossible_analysis_is_named(over, message):
    with pytest.raises(ConfigError, match=message):
        check(**over)


def test_what_is_not_asked_for_cannot_be_impossible():
    check(robustness_fractions=[0.1, 1.0], analyses=["validity"])
    check(seeds=list(range(11)), resampling={"seed_draws": ["paired"]})
    check(seeds=list(range(11)), analyses=["validity"])


def test_the_default_weights_are_the_papers():
    assert Weights.named(check().weights) == WEIGHTS
