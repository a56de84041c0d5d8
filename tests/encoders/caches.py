"""Where prefetching would have put the files of a release: the caches of the test's machine."""

from pathlib import Path

from crsbench.encoders import fetching
from crsbench.encoders.cards import EncoderCard


def cached_folder(cache: Path, card: EncoderCard) -> Path:
    """Make and return the folder of a card's files, in the hub's cache or in Google Drive's."""
    weights = card.weights
    if weights.kind == "drive":
        folder = fetching.drive_path(weights).parent
    else:
        repo = cache / f"models--{weights.repo.replace('/', '--')}"
        commit = weights.revision if len(weights.revision) == 40 else "c" * 40
        if commit != weights.revision:
            (repo / "refs").mkdir(parents=True)
            (repo / "refs" / weights.revision).write_text(commit)
        folder = repo / "snapshots" / commit
    folder.mkdir(parents=True)
    return folder
