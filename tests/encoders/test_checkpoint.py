"""Reading checkpoints: nothing runs code unless it may, and no tensor is lost in silence."""

from pathlib import Path

import pytest
import torch

from crsbench.encoders.cards import EncoderCard, load_cards
from crsbench.encoders.loaders import checkpoint
from crsbench.errors import WeightsError

CARD = load_cards([Path(__file__).parents[2] / "config" / "encoders.yaml"])["panderm"]


class Payload:
    """What a hostile pickle would run."""

    def __reduce__(self):
        return (exec, ("raise SystemExit('the pickle ran')",))


def test_a_pickle_that_runs_code_is_not_opened(tmp_path):
    path = tmp_path / "evil.pth"
    torch.save({"state": Payload()}, path)
    with pytest.raises(
        WeightsError, match=r"evil\.pth: cannot be read safely: it needs exec; .*unsafe_pickle"
    ):
        checkpoint.read_checkpoint(path, CARD)


@pytest.mark.parametrize("content", [b"", b"<html>quota exceeded</html>", b"\x80\x02x", None])
def test_a_damaged_pickle_is_to_be_fetched_again_and_not_to_be_trusted(content, tmp_path):
    path = tmp_path / "half.pth"
    torch.save({"weight": torch.ones(300)}, path)
    path.write_bytes(path.read_bytes()[:700] if content is None else content)
    with pytest.raises(WeightsError, match=r"half\.pth: damaged, .*fetch it again") as caught:
        checkpoint.read_checkpoint(path, CARD)
    assert "unsafe_pickle" not in str(caught.value)


def test_only_a_card_that_says_so_lets_a_pickle_run_code(tmp_path):
    path = tmp_path / "other.pth"
    torch.save({"place": Path("x")}, path)
    trusting = EncoderCard.model_validate({**CARD.model_dump(), "unsafe_pickle": True})
    with pytest.raises(WeightsError, match="cannot be read safely"):
        checkpoint.read_checkpoint(path, CARD)
    assert checkpoint.read_checkpoint(path, trusting) == {"place": Path("x")}


def test_a_damaged_safetensors_file_is_named(tmp_path):
    path = tmp_path / "half.safetensors"
    path.write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00{")
    with pytest.raises(WeightsError, match=r"half\.safetensors: damaged safetensors file"):
        checkpoint.read_checkpoint(path, CARD)
    with pytest.raises(WeightsError, match=r"half\.safetensors: damaged safetensors file"):
        checkpoint.read_matching(path, ".*")


def test_tensors_of_unknown_modules_are_refused():
    state = {"a.x": 1, "text.y": 2, "other.z": 3}
    with pytest.raises(WeightsError, match=r"me: surplus in the checkpoint: other\.z"):
        checkpoint.below(state, "a.", ignored=r"text\..*", owner="me")
    assert checkpoint.below(state, "a.", ignored=r"(text|other)\..*", owner="me") == {"x": 1}
    with pytest.raises(WeightsError, match=r"nothing in the checkpoint is below 'b\.'"):
        checkpoint.below(state, "b.", ignored=".*", owner="me")
