"""Colour and texture statistics: the baseline that has learned nothing.

87 numbers of each image: per colour channel the moments and quantiles, the correlations between
channels, contrast and edges of the luminance at four scales, a histogram of edge orientations,
and the luminance and contrast of a 4 x 4 grid.
"""

import numpy as np
import torch
from torch import nn

from crsbench.encoders.cards import EncoderCard
from crsbench.encoders.loaders import checkpoint
from crsbench.errors import WeightsError

ARCHITECTURE = "colour_and_texture_statistics"
QUANTILES = (0.02, 0.25, 0.5, 0.75, 0.98)
LUMA = np.array((0.299, 0.587, 0.114))
N_SCALES = 4
N_ORIENTATIONS = 8
N_GRID = 4


class Statistics(nn.Module):
    """Module form of `image_statistics`."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Return the statistics (N, 87) of a batch (N, 3, H, W) with values in [0, 1]."""
        images = batch.detach().cpu().numpy().astype(np.float64)
        rows = np.stack([image_statistics(image) for image in images])
        return torch.from_numpy(rows.astype(np.float32)).to(batch.device)


def load_source(card: EncoderCard) -> tuple[checkpoint.State, checkpoint.Source]:
    """Return no tensors: there is nothing to load."""
    return {}, checkpoint.Source(f"no weights ({card.architecture})", "")


def build(card: EncoderCard) -> nn.Module:
    """Return the baseline as a module."""
    if card.architecture != ARCHITECTURE:
        raise WeightsError(
            f"{card.name}: architecture {card.architecture!r}, but this loader has {ARCHITECTURE!r}"
        )
    return Statistics()


def image_statistics(image: np.ndarray) -> np.ndarray:
    """Return the statistics (87,) of one image (3, H, W) with values in [0, 1]."""
    luminance = np.tensordot(LUMA, image, axes=1)
    parts = (_colours(image), _scales(luminance), _orientations(luminance), _grid(luminance))
    return np.concatenate(parts)


def _colours(image: np.ndarray) -> np.ndarray:
    pixels = image.reshape(3, -1)
    mean = pixels.mean(axis=1)
    centred = pixels - mean[:, None]
    squared = centred * centred
    std = np.sqrt(squared.mean(axis=1))
    safe = np.where(std > 0, std, 1)
    skewness = (squared * centred).mean(axis=1) / safe**3
    correlation = (centred @ centred.T) / pixels.shape[1] / np.outer(safe, safe)
    places = np.rint(np.array(QUANTILES) * (pixels.shape[1] - 1)).astype(int)
    quantiles = np.sort(pixels, axis=1)[:, places]
    upper = correlation[np.triu_indices(3, 1)]
    return np.concatenate([mean, std, skewness, quantiles.ravel(), upper])


def _scales(luminance: np.ndarray) -> np.ndarray:
    """Return contrast and mean edge strengths (down, across, both) at each halving of the size."""
    rows = []
    for _ in range(N_SCALES):
        down, across = np.abs(np.diff(luminance, axis=0)), np.abs(np.diff(luminance, axis=1))
        both = np.sqrt(down[:, :-1] ** 2 + across[:-1] ** 2)
        rows.append([luminance.std(), down.mean(), across.mean(), both.mean(), both.std()])
        luminance = _halved(luminance)
    return np.ravel(rows)


def _halved(luminance: np.ndarray) -> np.ndarray:
    height, width = (length // 2 for length in luminance.shape)
    blocks = luminance[: 2 * height, : 2 * width].reshape(height, 2, width, 2)
    return blocks.mean(axis=(1, 3))


def _orientations(luminance: np.ndarray) -> np.ndarray:
    """Return the share of edge strength in each of eight directions modulo 180 degrees."""
    down, across = np.gradient(luminance)
    strength = np.sqrt(down**2 + across**2)
    angle = np.mod(np.arctan2(down, across), np.pi) / np.pi
    bins = np.minimum((angle * N_ORIENTATIONS).astype(int), N_ORIENTATIONS - 1)
    weights = np.bincount(bins.ravel(), strength.ravel(), minlength=N_ORIENTATIONS)
    return weights / max(weights.sum(), np.finfo(float).tiny)


def _grid(luminance: np.ndarray) -> np.ndarray:
    rows = np.array_split(luminance, N_GRID, axis=0)
    cells = [cell for row in rows for cell in np.array_split(row, N_GRID, axis=1)]
    return np.array([[cell.mean(), cell.std()] for cell in cells]).ravel()
