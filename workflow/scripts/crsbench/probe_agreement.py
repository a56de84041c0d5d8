"""Whether the order of encoders hangs on the probe: every further probe against the primary one.

What is compared is macro-AUROC with all labels on clean images of a dataset's own test side. In the
aggregate an encoder has its mean over the datasets where both probes have a value.
"""

import numpy as np
import polars as pl

from crsbench.cell_arrays import Floats, cell_array, clean_full_label_rows, own_side
from crsbench.rankings import kendall_tau_b, spearman
from crsbench.reference import AGGREGATE

PROBE_AGREEMENT = pl.Schema(
    {
        "scope": pl.String(),
        "probe": pl.String(),
        "n_encoders": pl.Int64(),
        "auroc": pl.Float64(),
        "auroc_primary": pl.Float64(),
        "tau": pl.Float64(),
        "rho": pl.Float64(),
        "reason": pl.String(),
    }
)


def probe_agreement(metric_rows: pl.DataFrame, *, primary: str) -> pl.DataFrame:
    """Compare the AUROCs of encoders under each further probe with those under the primary one.

    Parameters
    ----------
    metric_rows
        Metric rows (`records.METRIC_ROW`) of all probes.
    primary
        The probe whose axes are scored.

    Returns
    -------
    DataFrame
        `PROBE_AGREEMENT`, one row per scope and further probe: mean AUROC of the encoders that have
        a value under both, and the rank correlations. No row where there is no further probe.
    """
    encoders, datasets, probes = (
        metric_rows[name].unique(maintain_order=True).to_list()
        for name in ("encoder", "dataset", "probe")
    )

    def aurocs(probe: str) -> Floats:
        rows = own_side(clean_full_label_rows(metric_rows, probe=probe))
        return cell_array(rows, ("macro_auroc",), encoders=encoders, datasets=datasets)[..., 0]

    expected = aurocs(primary)
    rows = []
    for probe in probes:
        if probe == primary:
            continue
        both = np.stack([aurocs(probe), expected])
        both[:, ~np.isfinite(both).all(axis=0)] = np.nan
        rows.append({"scope": AGGREGATE, "probe": probe, **_agreement(_means(both))})
        rows += [
            {"scope": dataset, "probe": probe, **_agreement(both[:, :, place])}
            for place, dataset in enumerate(datasets)
        ]
    return pl.DataFrame(rows, schema=PROBE_AGREEMENT).fill_nan(None)


def _means(values: Floats) -> Floats:
    """Return the means over the last axis of what is not NaN; NaN where all is."""
    known = ~np.isnan(values)
    counts = known.sum(axis=-1)
    return np.where(known, values, 0.0).sum(axis=-1) / np.where(counts > 0, counts, np.nan)


def _agreement(both: Floats) -> dict[str, object]:
    """Compare two rows of values, (2, K), where both are there."""
    ours, theirs = both[:, np.isfinite(both).all(axis=0)]
    tau = float(kendall_tau_b(ours, theirs))
    return {
        "n_encoders": len(ours),
        "auroc": float(_means(ours)),
        "auroc_primary": float(_means(theirs)),
        "tau": tau,
        "rho": float(spearman(ours, theirs)),
        "reason": f"{len(ours)} encoders, or all tied" if np.isnan(tau) else None,
    }
