"""Settings of a run: typed, complete, checked before anything runs.

``config/config.yaml`` is the only home of defaults: every key stands there with its meaning, so
nothing here has a default. Further files and ``--config`` pairs are merged over it, as Snakemake
does: mappings key by key, lists and scalars replaced.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from crsbench.errors import ConfigError
from crsbench.validation import describe_errors

#: The acquisition perturbations, in the order of every table.
PERTURBATIONS = ("blur", "jpeg", "contrast", "rician", "fov")
SEVERITIES = (1, 2, 3)
#: With more seeds their multisets are too many to enumerate (`crsbench.resampling`).
MOST_EXACT_SEEDS = 10

Perturbation = Literal["blur", "jpeg", "contrast", "rician", "fov"]
Probe = Literal["logistic", "mlp", "knn"]
Analysis = Literal["bootstrap", "case_bootstrap", "validity"]
Axis = Literal["discrimination", "calibration", "label_efficiency", "robustness"]
SeedDraws = Literal["paired", "exact", "per_dataset"]
Fraction = Annotated[float, Field(gt=0, le=1)]
Share = Annotated[float, Field(ge=0.001, le=1)]
Sigma = Annotated[float, Field(ge=0.001, le=224)]
Quality = Annotated[int, Field(ge=1, le=100)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_]*$")]


class Model(BaseModel):
    """Base of all typed configuration: immutable, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Split(Model):
    """Shares of the three sides of the one fixed split, and the seed that draws it."""

    train: Fraction
    calibration: Fraction
    test: Fraction
    seed: int

    @model_validator(mode="after")
    def _shares_sum_to_one(self) -> Self:
        total = self.train + self.calibration + self.test
        if abs(total - 1) > 1e-9:
            raise ValueError(f"train + calibration + test must be 1, not {total:g}")
        return self


class Severities(Model):
    """Strengths of severities 1, 2, 3; lengths for a shorter side of 224 px."""

    blur: tuple[Sigma, Sigma, Sigma]
    jpeg: tuple[Quality, Quality, Quality]
    contrast: tuple[Share, Share, Share]
    rician: tuple[Share, Share, Share]
    fov: tuple[Share, Share, Share]


class Logistic(Model):
    """Stopping rule of the logistic probe."""

    tolerance: Annotated[float, Field(gt=0)]
    max_iterations: Annotated[int, Field(gt=0)]


class Mlp(Model):
    """Size and training of the perceptron probe."""

    hidden: Annotated[int, Field(gt=0)]
    learning_rate: Annotated[float, Field(gt=0)]
    weight_decay: Annotated[float, Field(ge=0)]
    batch_size: Annotated[int, Field(gt=0)]
    epochs: Annotated[int, Field(gt=0)]


class Knn(Model):
    """The probe of nearest neighbours."""

    n_neighbours: Annotated[int, Field(gt=0)]


class Metrics(Model):
    """Choices of the metrics that the protocol leaves open."""

    n_bins: Annotated[int, Field(gt=0)]
    specificity: Annotated[float, Field(gt=0, lt=1)]
    binary_confidence: Literal["positive", "max"]


class Components(Model):
    """Weights of the three components of CRS (equation 8)."""

    dominance: Annotated[float, Field(ge=0)]
    ideal_point: Annotated[float, Field(ge=0)]
    worst_axis: Annotated[float, Field(ge=0)]


class AxisWeights(Model):
    """Weights of the four axes inside the ideal-point term (equation 7)."""

    discrimination: Annotated[float, Field(ge=0)]
    calibration: Annotated[float, Field(ge=0)]
    label_efficiency: Annotated[float, Field(ge=0)]
    robustness: Annotated[float, Field(ge=0)]


class Score(Model):
    """The reference and the weights of CRS."""

    reference: str
    components: Components
    axes: AxisWeights

    @model_validator(mode="after")
    def _weights_sum_to_one(self) -> Self:
        for name, weights in (("components", self.components), ("axes", self.axes)):
            total = sum(weights.model_dump().values())
            if abs(total - 1) > 1e-9:
                raise ValueError(f"the weights of {name} must sum to 1, not {total:g}")
        return self


class Resampling(Model):
    """How the two bootstraps draw, and the seed that all analyses draw from."""

    seed: int
    seed_replicates: Annotated[int, Field(gt=0)]
    seed_draws: Annotated[tuple[SeedDraws, ...], Field(min_length=1)]
    case_replicates: Annotated[int, Field(gt=0)]


class Validity(Model):
    """How panels, insertions and weights are drawn, and what is predicted of a held-out dataset."""

    panel_draws: Annotated[int, Field(gt=0)]
    panel_sizes: tuple[Annotated[int, Field(gt=1)], ...]
    insertion_trials: Annotated[int, Field(gt=0)]
    weight_draws: Annotated[int, Field(gt=0)]
    weight_factors: tuple[Annotated[float, Field(ge=0)], Annotated[float, Field(gt=0)]]
    held_out_target: Axis

    @model_validator(mode="after")
    def _factors_in_order(self) -> Self:
        low, high = self.weight_factors
        if low > high:
            raise ValueError(f"weight_factors: the first is the lowest, got {low}, {high}")
        return self


class Extraction(Model):
    """How features are computed; none of it changes a feature beyond the stated tolerance."""

    batch_size: Annotated[int, Field(gt=0)]
    device: Literal["auto", "cpu", "cuda", "mps"]
    threads: Annotated[int, Field(gt=0)]
    perturbed_cache: bool


class Fitting(Model):
    """How probes are fitted; none of it changes a fit beyond its tolerance."""

    device: Literal["auto", "cpu", "cuda"]


_SELECTIONS = (
    "encoders", "datasets", "shift", "label_fractions", "seeds", "perturbations", "probes",
    "analyses", "robustness_fractions",
)  # fmt: skip


class Settings(Model):
    """All settings of a run. ``config/config.yaml`` documents each key."""

    encoders: Annotated[tuple[Name, ...], Field(min_length=1)]
    datasets: Annotated[tuple[Name, ...], Field(min_length=1)]
    shift: tuple[Name, ...]
    label_fractions: Annotated[tuple[Fraction, ...], Field(min_length=1)]
    seeds: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)]
    perturbations: Annotated[tuple[Perturbation, ...], Field(min_length=1)]
    probes: Annotated[tuple[Probe, ...], Field(min_length=1)]

    store: Annotated[str, Field(min_length=1)]
    run: Annotated[
        str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9_.-]*)?$", examples=['two, or "" for none'])
    ]
    data_root: str
    encoder_definitions: Annotated[
        tuple[str, ...], Field(min_length=1, examples=["[config/encoders.yaml,my_encoders.yaml]"])
    ]
    dataset_definitions: Annotated[
        tuple[str, ...], Field(min_length=1, examples=["[config/datasets.yaml,my_datasets.yaml]"])
    ]
    missing: Literal["error", "skip"]
    verify: Literal["full", "sample", "size"]
    unlike_release: Literal["error", "warn"]

    split: Split
    uncertain: Literal["mask", "zeros", "ones", "mixed"]
    conflicting_labels: Literal["drop_conflicting", "keep"]
    near_duplicates: Annotated[int, Field(ge=0, le=24)] | None
    max_side_px: Annotated[int, Field(gt=0)]
    severities: Severities
    depth_features: bool
    logistic: Logistic
    mlp: Mlp
    knn: Knn
    metrics: Metrics
    robustness_fractions: Annotated[tuple[Fraction, ...], Field(min_length=1)]
    score: Score
    analyses: tuple[Analysis, ...]
    resampling: Resampling
    validity: Validity
    extraction: Extraction
    fitting: Fitting

    @model_validator(mode="after")
    def _selections_make_sense(self) -> Self:
        for name in _SELECTIONS:
            selected = getattr(self, name)
            repeated = sorted({str(item) for item in selected if selected.count(item) > 1})
            if repeated:
                raise ValueError(f"{name}: {', '.join(repeated)} selected more than once")
        if 1.0 not in self.label_fractions:
            raise ValueError("label_fractions: 1.0 is missing; every axis refers to all labels")
        foreign = sorted(set(self.robustness_fractions) - set(self.label_fractions))
        if foreign:
            raise ValueError(f"robustness_fractions: {foreign[0]:g} is not among label_fractions")
        return self

    @model_validator(mode="after")
    def _analyses_are_possible(self) -> Self:
        bootstraps = [name for name in self.analyses if name != "validity"]
        if bootstraps and self.robustness_fractions != (1.0,):
            raise ValueError(
                f"analyses: {', '.join(bootstraps)} cannot be made unless robustness_fractions is "
                "[1.0]; leave them out"
            )
        exact = "bootstrap" in bootstraps and "exact" in self.resampling.seed_draws
        if exact and len(self.seeds) > MOST_EXACT_SEEDS:
            raise ValueError(
                f"resampling.seed_draws: exact is possible with {MOST_EXACT_SEEDS} seeds or fewer, "
                f"not with {len(self.seeds)}; leave it out"
            )
        return self

    def probe_settings(self, probe: Probe) -> dict[str, float | int]:
        """Return the settings of one probe: what a change of it must re-fit."""
        settings: Model = getattr(self, probe)
        return settings.model_dump()

    def gpus_of_probe(self, probe: Probe) -> int:
        """Return how many GPUs a job of a probe must be given; only the logistic one uses any."""
        return int(probe == "logistic" and self.fitting.device == "cuda")

    def scoring_settings(self, probe: Probe) -> dict[str, Any]:
        """Return how the predictions of a probe are scored: what a change of it re-evaluates."""
        n_votes = self.knn.n_neighbours if probe == "knn" else None
        return {**self.metrics.model_dump(), "n_votes": n_votes}

    @property
    def reference_files(self) -> list[str]:
        """The file of the reference; none where the run's own cohort is the reference."""
        return [] if self.score.reference == "cohort" else [self.score.reference]

    @property
    def run_folder(self) -> str:
        """The folder of this run's tables and figures: the store, or a named run in it."""
        return f"{self.store}/runs/{self.run}" if self.run else self.store

    @property
    def weights(self) -> dict[str, dict[str, float]]:
        """The weights of CRS by name, ``components`` and ``axes``."""
        return self.score.model_dump(include={"components", "axes"})


class Source:
    """Where configuration came from, to name the file in an error.

    Parameters
    ----------
    name
        What an error calls it: a path, or ``--config``.
    content
        The mapping that was read.
    """

    def __init__(self, name: str, content: Mapping[str, Any]) -> None:
        self.name = name
        self.content = content


def read_source(path: str | Path) -> Source:
    """Read one YAML file of settings."""
    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"{path}: no such configuration file")
    return Source(str(path), read_yaml(path))


class _UniqueKeys(yaml.SafeLoader):
    """A loader that refuses a key given twice: one of the two would be ignored."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(problem=f"{key!r} stands there twice")
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds a mapping."""
    try:
        content = yaml.load(path.read_text(encoding="utf-8-sig"), _UniqueKeys)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected a mapping of keys, got {type(content).__name__}")
    return content


def merge_all(sources: Sequence[Source]) -> dict[str, Any]:
    """Merge sources, later ones over earlier ones."""
    merged: dict[str, Any] = {}
    for source in sources:
        merged = merge(merged, source.content)
    return merged


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two configurations as Snakemake does: mappings key by key, the rest replaced."""
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def check_settings(merged: Mapping[str, Any], sources: Sequence[Source]) -> Settings:
    """Check merged settings; an error is one line that names file, key and what is allowed."""
    try:
        return Settings.model_validate(merged)
    except ValidationError as error:
        raise ConfigError(
            describe_errors(
                error,
                Settings,
                where=lambda key: _file_of(key, sources),
                documented_in="config/config.yaml",
            )
        ) from error


def _file_of(key: str, sources: Sequence[Source]) -> str:
    holding = [source.name for source in sources if key in source.content]
    return holding[-1] if holding else sources[-1].name
