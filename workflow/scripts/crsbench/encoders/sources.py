"""Where the weights of an encoder come from: one kind of entry for each place.

A place is pinned where the card can: by a full commit, or by the digest of the file.
"""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from crsbench.config import Model
from crsbench.encoders.shorthand import tagged

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class HubWeights(Model):
    """A file of a Hugging Face repository at a pinned revision.

    `sha256` (or `md5`, where the authors give no other) is that of `file`; `shard_sha256` those of
    the shards that an index file points to.
    """

    kind: Literal["hub"]
    repo: Annotated[str, Field(pattern=r"^[\w.-]+/[\w.-]+$")]
    revision: str
    file: str
    sha256: Sha256 | None = None
    md5: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")] | None = None
    shard_sha256: dict[str, Sha256] = Field(default_factory=dict)


class PackageWeights(Model):
    """A file that an installed Python package carries."""

    kind: Literal["package"]
    package: str
    file: str
    sha256: Sha256


class DriveWeights(Model):
    """A file on Google Drive: by its own id, or by name inside a shared folder's id."""

    kind: Literal["drive"]
    id: str
    file: str
    folder: bool = False
    sha256: Sha256 | None = None


class FileWeights(Model):
    """A local checkpoint; a relative path starts at the working directory."""

    kind: Literal["file"]
    path: str
    sha256: Sha256 | None = None


class RandomWeights(Model):
    """No training: weights drawn from `seed`."""

    kind: Literal["random"]
    seed: Annotated[int, Field(ge=0)]


class NoWeights(Model):
    """The encoder has no weights."""

    kind: Literal["none"]


Weights = Annotated[
    HubWeights | PackageWeights | DriveWeights | FileWeights | RandomWeights | NoWeights,
    Field(discriminator="kind"),
    BeforeValidator(lambda value: tagged("kind", value, bare={"file": "path"})),
]
