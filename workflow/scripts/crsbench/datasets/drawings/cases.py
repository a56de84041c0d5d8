"""Who is drawn: the subjects, their images, and what each image shows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from crsbench.digests import generator


@dataclass(frozen=True)
class Case:
    """One image to draw.

    Parameters
    ----------
    identifier, group
        Names of the image and of its subject (lesion or patient).
    signs
        What is drawn. The labels may say less: a reader can be uncertain.
    cells
        The label columns of ``labels.csv`` with their values as written.
    """

    identifier: str
    group: str
    signs: frozenset[str]
    cells: Mapping[str, str]

    def randomness(self, kind: str, seed: int) -> tuple[np.random.Generator, np.random.Generator]:
        """Return the generators of what the subject's images share, and of this image alone."""
        return (
            generator("phantom", kind, seed, "subject", self.group),
            generator("phantom", kind, seed, "image", self.identifier),
        )


def quotas(shares: Sequence[float], total: int) -> list[int]:
    """Split `total` by `shares` (largest remainders), with at least one for each share."""
    exact = np.asarray(shares, dtype=np.float64) / np.sum(shares) * total
    counts = np.maximum(np.floor(exact).astype(int), 1)
    while counts.sum() < total:
        counts[np.argmax(exact - counts)] += 1
    while counts.sum() > total:
        counts[np.argmax(np.where(counts > 1, counts - exact, -np.inf))] -= 1
    return [int(count) for count in counts]


def subject_sizes(rng: np.random.Generator, total: int, shares: Sequence[float]) -> list[int]:
    """Return the number of images of each subject: 1, 2, … drawn by `shares`; sum `total`."""
    sizes: list[int] = []
    while (left := total - sum(sizes)) > 0:
        sizes.append(min(left, 1 + int(rng.choice(len(shares), p=shares))))
    return sizes
