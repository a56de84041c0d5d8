"""The choice of a device: torch is not imported without need, and an absent GPU is an error."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from crsbench.errors import ConfigError
from crsbench.probes import devices
from crsbench.probes.devices import chosen_engine
from crsbench.probes.engines import NUMPY
from crsbench.probes.logistic import PROBE

LARGE, SMALL = 2**23, 2**23 - 1


@pytest.fixture
def a_gpu(monkeypatch, tmp_path):
    """Make it look as if there were a GPU."""
    monkeypatch.setattr(devices, "_DRIVERS", (tmp_path,))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Some GPU")


@pytest.fixture
def no_gpu(monkeypatch):
    """Make it look as if there were none."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_without_a_gpu_torch_is_not_imported():
    code = (
        "import sys\n"
        "from crsbench.probes import devices\n"
        "from crsbench.probes.logistic import PROBE\n"
        "devices._DRIVERS = ()\n"
        "assert [PROBE.engine(name, 2**40).name for name in ('auto', 'cpu')] == ['cpu', 'cpu']\n"
        "sys.exit('torch' in sys.modules)"
    )
    scripts = Path(devices.__file__).parents[2]
    subprocess.run([sys.executable, "-c", code], cwd=scripts, check=True)


@pytest.mark.usefixtures("a_gpu")
def test_auto_takes_a_gpu_for_a_large_cell_only():
    assert chosen_engine("auto", LARGE).name == "cuda (Some GPU)"
    assert chosen_engine("auto", SMALL) is NUMPY


@pytest.mark.usefixtures("a_gpu")
@pytest.mark.parametrize("hidden", ["", "-1"])
def test_a_hidden_gpu_is_not_asked_for(monkeypatch, hidden):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    monkeypatch.delattr(torch.cuda, "is_available")
    assert chosen_engine("auto", LARGE) is NUMPY


@pytest.mark.usefixtures("a_gpu", "no_gpu")
def test_a_driver_without_a_gpu_leaves_auto_to_the_cpu():
    assert chosen_engine("auto", LARGE) is NUMPY


@pytest.mark.usefixtures("a_gpu")
@pytest.mark.parametrize("n_numbers", [1, LARGE])
def test_a_device_that_is_named_is_taken_whatever_the_cell(n_numbers):
    assert chosen_engine("cuda", n_numbers).name == "cuda (Some GPU)"
    assert chosen_engine("cpu", n_numbers) is NUMPY


@pytest.mark.usefixtures("no_gpu")
def test_an_absent_gpu_that_was_asked_for_is_an_error_of_one_line():
    with pytest.raises(ConfigError, match=r"fitting\.device: cuda is not available here") as error:
        PROBE.engine("cuda", 1)
    assert "\n" not in str(error.value)
