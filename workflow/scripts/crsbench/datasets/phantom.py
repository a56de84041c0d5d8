"""The embedded demo's data: synthetic pictures, drawn from a seed and called phantoms.

No picture shows a person. What separates the classes is where and what shape the marks are, as
in the images that a phantom stands for; colour, brightness, scale and rotation vary at random.

A draw depends on (kind, n_images, size_px, seed) alone. Its plan says which subject (lesion,
patient) has which images and labels; then each image follows from its own identity, so that
neither the order nor the number of workers matters. ``labels.csv`` is what the folder adapter
reads: id, path, group and the label column(s).
"""

import csv
import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from PIL import Image

from crsbench.datasets import phantom_dermoscopy, phantom_fundus, phantom_radiograph
from crsbench.errors import ConfigError, DataError
