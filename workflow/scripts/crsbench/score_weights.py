"""The weights of CRS as the settings name them."""

from collections.abc import Mapping

from crsbench.crs import Weights


def weights_of(score: Mapping[str, Mapping[str, float]]) -> Weights:
    """Return the weights in the settings ``score``, by their names under components and axes."""
    parts, axes = score["components"], score["axes"]
    return Weights(
        components=(parts["dominance"], parts["ideal_point"], parts["worst_axis"]),
        axes=(
            axes["discrimination"],
            axes["calibration"],
            axes["label_efficiency"],
            axes["robustness"],
        ),
    )
