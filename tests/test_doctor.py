"""The doctor: one line for each encoder and dataset, the estimates, and the exit status."""

import subprocess
import sys
from collections import namedtuple
from collections.abc import Mapping
from pathlib import Path

import polars as pl
import pytest
from huggingface_hub import constants

from crsbench.cli import main
from crsbench.config import read_yaml
from crsbench.estimates import GB, count_images, logit_bytes, remaining_work
from crsbench.plan import Plan, make_plan

ROOT = Path(__file__).parents[1]
FULL = ROOT / "config" / "config.yaml"
N_IMAGES = {"isic2019": 25_331, "aptos2019": 3_662, "chexpert": 191_229, "mimic_cxr": 3_300}
TOKEN = "hf_" + "secret" * 5
Usage = namedtuple("Usage", ["total", "used", "free"])
pytestmark = pytest.mark.usefixtures("empty_cache", "no_sockets")


@pytest.fixture(autouse=True)
def _in_the_project(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.fixture(autouse=True)
def _on_a_machine_with_room(monkeypatch):
    """Give the machine 1 TB of free disk and 64 GB of memory, whatever this one has."""
    monkeypatch.setattr("crsbench.doctor.shutil.disk_usage", lambda _: Usage(0, 0, free=10**12))
    sizes = {"SC_PHYS_PAGES": 16_000_000, "SC_PAGE_SIZE": 4_000}
    monkeypatch.setattr("crsbench.doctor.os.sysconf", sizes.__getitem__)


def plan_of(*, store: Path, **settings: object) -> Plan:
    merged = {**read_yaml(FULL), "store": str(store), **settings}
    return make_plan(merged, files=[FULL])


def examined(capsys, *arguments: object) -> tuple[int, list[str], str]:
    status = main(["doctor", *map(str, arguments)])
    captured = capsys.readouterr()
    return status, captured.out.splitlines(), captured.err


def rows_of(lines: list[str], header: str) -> dict[str, str]:
    start = next(i for i, line in enumerate(lines) if line.startswith(header)) + 1
    end = next((i for i in range(start, len(lines)) if not lines[i]), len(lines))
    rows = [line.partition(" ") for line in lines[start:end]]
    return {name: rest.strip() for name, _, rest in rows}


def test_a_bare_machine_lacks_everything_and_each_line_says_what_to_do(capsys, tmp_path):
    options = (f"data_root={tmp_path / 'data'}", f"store={tmp_path / 'store'}")
    status, lines, error = examined(capsys, "--config", *options)
    encoders, datasets = rows_of(lines, "encoder "), rows_of(lines, "dataset ")
    assert list(encoders) == read_yaml(FULL)["encoders"]
    assert list(datasets) == list(N_IMAGES)
    assert encoders["resnet50"].startswith("missing   ")
    assert (
        "model.safetensors: crsbench prefetch fetches it where HF_HUB_OFFLINE is not set"
        in (encoders["resnet50"])
    )
    assert encoders["mae_b16"].startswith("missing, unpinned")
    assert "(revision main can move, and no digest is known)" in encoders["mae_b16"]
    assert encoders["medgemma"].startswith("gated")
    assert "https://huggingface.co/google/medgemma-4b-it" in encoders["medgemma"]
    states = {name: line.partition("  ")[0] for name, line in datasets.items()}
    assert states.pop("isic2019") == "missing"
    assert set(states.values()) == {"gated"}
    page = "https://www.kaggle.com/competitions/aptos2019-blindness-detection"
    assert f"needs a Kaggle account; ask for access at {page} if" in datasets["aptos2019"]
    assert status == 1
    assert error.startswith("crsbench: not ready: resnet50 missing, ")
    assert error.count("\n") == 1


def test_a_run_that_needs_nothing_is_ready(capsys, tmp_path):
    status, lines, error = examined(
        capsys, "--configfile", "config/tiny.yaml", "--config", f"store={tmp_path}"
    )
    assert (status, error) == (0, "")
    assert rows_of(lines, "encoder ")["tiny_resnet"].startswith("present")
    assert rows_of(lines, "dataset ")["tiny_radiograph"] == "present  drawn by the workflow"
    assert lines[-1] == "ready"


def test_with_a_network_what_the_run_fetches_is_no_fault_and_is_named(
    capsys, monkeypatch, tmp_path
):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    status, lines, error = examined(
        capsys, "--config", "encoders=[resnet50,panderm,statistics]", "datasets=[isic2019]",
        "shift=[]", f"data_root={tmp_path / 'data'}", f"store={tmp_path / 'store'}",
    )  # fmt: skip
    assert (status, error) == (0, "")
    assert rows_of(lines, "encoder ")["resnet50"].startswith("missing, fetched by the run  ")
    assert rows_of(lines, "encoder ")["panderm"].startswith("missing, fetched by the run, unpinned")
    assert rows_of(lines, "dataset ")["isic2019"].startswith("missing, fetched by the run  ")
    assert lines[-1] == "ready; the run itself fetches resnet50, panderm, isic2019"


def test_what_needs_an_account_stays_a_fault_with_a_network(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    options = (
        "encoders=[resnet50,medsiglip]", f"data_root={tmp_path / 'data'}", f"store={tmp_path}"
    )  # fmt: skip
    status, lines, error = examined(capsys, "--config", *options)
    faults = ("medsiglip gated", "aptos2019 gated", "chexpert gated", "mimic_cxr gated")
    assert status == 1
    assert f"not ready: {', '.join(faults)}" in error
    assert not any(line.startswith("ready") for line in lines)


@pytest.mark.parametrize(
    ("setting", "state", "advice"),
    [
        ("error", "digest mismatch", "or set unlike_release=warn where another is meant"),
        ("warn", "digest mismatch, allowed", "as unlike_release=warn is set, the run goes on"),
    ],
)
def test_a_label_file_unlike_its_release_is_a_fault_unless_allowed(
    setting, state, advice, capsys, tmp_path
):
    root = tmp_path / "data" / "aptos2019"
    (root / "train_images").mkdir(parents=True)
    (root / "train.csv").write_text("id_code,diagnosis\na,0\n")
    status, lines, error = examined(
        capsys, "--config", "encoders=[untrained_vit_tiny,statistics]", "datasets=[aptos2019]",
        "shift=[]", f"unlike_release={setting}", f"data_root={tmp_path / 'data'}",
        f"store={tmp_path / 'store'}",
    )  # fmt: skip
    line = rows_of(lines, "dataset ")["aptos2019"]
    assert line.partition("  ")[0] == state
    assert f"{root / 'train.csv'}: SHA-256 " in line
    assert line.endswith(advice)
    assert status == (setting == "error")
    assert ("aptos2019 digest mismatch" in error) == (setting == "error")


def test_data_that_may_be_skipped_are_listed_and_are_no_fault(capsys, tmp_path):
    (tmp_path / "isic").mkdir()
    columns = "image,MEL,NV,BCC,AK,BKL,DF,VASC,SCC,UNK"
    folder = tmp_path / "data" / "isic2019"
    (folder / "ISIC_2019_Training_Input").mkdir(parents=True)
    (folder / "ISIC_2019_Training_GroundTruth.csv").write_text(f"{columns}\n")
    (folder / "ISIC_2019_Training_Metadata.csv").write_text("image,lesion_id\n")
    status, lines, error = examined(
        capsys, "--config", "missing=skip", "encoders=[untrained_vit_tiny,statistics]",
        f"data_root={tmp_path / 'data'}", f"store={tmp_path / 'store'}",
    )  # fmt: skip
    datasets = rows_of(lines, "dataset ")
    assert datasets["isic2019"].startswith("present")
    assert datasets["chexpert"].startswith("missing, skipped")
    assert (status, error) == (0, "")
    assert lines[-1] == "ready"


def test_a_token_is_never_printed(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    _, lines, error = examined(capsys, "--config", f"store={tmp_path}")
    printed = "\n".join([*lines, error])
    assert "if you have none yet" in printed
    assert TOKEN not in printed


def test_disk_and_memory_of_the_machine_are_printed(capsys, tmp_path):
    store = tmp_path / "not" / "yet" / "made"
    _, lines, _ = examined(capsys, "--configfile", "config/tiny.yaml", "--config", f"store={store}")
    (disk,) = (line for line in lines if line.startswith("disk: "))
    (memory,) = (line for line in lines if line.startswith("memory: "))
    assert disk.endswith(f"; 1000.0 GB free at {store}")
    assert memory.endswith("; this machine has 64.0 GB")


def test_too_little_disk_is_a_fault(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("crsbench.doctor.shutil.disk_usage", lambda _: Usage(0, 0, free=1000))
    status, lines, error = examined(
        capsys, "--configfile", "config/tiny.yaml", "--config", f"store={tmp_path}"
    )
    assert status == 1
    assert any(line.startswith("disk: ") for line in lines)
    assert "disk 0.0 GB, free 0.0" in error


def test_too_little_memory_is_a_fault(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("crsbench.doctor._machine_bytes", lambda: 2_000_000_000)
    options = ("--configfile", "config/tiny.yaml", "--config", f"store={tmp_path}")
    status, lines, error = examined(capsys, *options)
    assert status == 1
    (memory,) = (line for line in lines if line.startswith("memory: 3."))
    assert memory.endswith("; this machine has 2.0 GB")
    assert "GB, this machine has 2.0; each line above" in error


def test_memory_that_is_not_known_is_no_fault(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("crsbench.doctor.os.sysconf_names", {})
    options = ("--configfile", "config/tiny.yaml", "--config", f"store={tmp_path}")
    status, lines, _ = examined(capsys, *options)
    assert status == 0
    assert any(line.endswith("; how much this machine has is not known") for line in lines)


def test_where_no_extraction_is_left_no_memory_is_needed(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("crsbench.doctor._machine_bytes", lambda: 1)
    for encoder in ("tiny_resnet", "tiny_statistics"):
        for dataset in ("tiny_radiograph", "tiny_institution"):
            folder = tmp_path / "features" / encoder / dataset
            folder.mkdir(parents=True)
            for file in ("clean.parquet", "perturbed.parquet"):
                (folder / file).touch()
    status, lines, _ = examined(
        capsys, "--configfile", "config/tiny.yaml", "--config", f"store={tmp_path}"
    )
    assert status == 0
    assert "memory: no extraction is left" in lines


def test_it_starts_without_torch(tmp_path):
    code = (
        "import sys; from crsbench.cli import main\n"
        "main(['doctor', '--configfile', 'config/tiny.yaml']); sys.exit('torch' in sys.modules)"
    )
    environment = {"PYTHONPATH": str(ROOT / "workflow" / "scripts")}
    subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, check=True, capture_output=True
    )


def total(work: list, name: str) -> float:
    return sum(getattr(each, name) for each in work)


def test_the_full_benchmark_has_the_sizes_that_were_reckoned_for_it(tmp_path):
    plan = plan_of(store=tmp_path)
    work = remaining_work(plan, N_IMAGES)
    assert total(work, "bytes_clean") / GB == pytest.approx(15, abs=0.5)
    assert total(work, "bytes_depth") / GB == pytest.approx(40, abs=6)
    assert total(work, "bytes_perturbed") / GB == pytest.approx(45, abs=0.5)
    assert logit_bytes(plan, N_IMAGES) / GB == pytest.approx(14, abs=2)
    assert max(work, key=lambda each: each.gpu_hours).encoder == "medgemma"


def test_images_and_bytes_are_those_of_the_cells(tmp_path):
    plan = plan_of(store=tmp_path, encoders=["resnet50", "chexzero"], datasets=["aptos2019"])
    resnet, chexzero = remaining_work(plan, N_IMAGES)
    assert (resnet.n_clean, resnet.n_perturbed) == (3_662, 15 * 732)
    assert resnet.bytes_clean == 3_662 * 2048 * 4
    assert (chexzero.n_clean, chexzero.bytes_perturbed) == (0, 0)
    assert resnet.bytes_depth == 0
    clean, perturbed = 0.1 * 3_662 + 0.2 * 3_662, 15 * 0.2 * 3_662
    assert logit_bytes(plan, N_IMAGES) == pytest.approx(21 * (clean + perturbed) * 5 * 4)


def test_gpu_hours_are_operations_over_the_assumed_rate(tmp_path):
    plan = plan_of(store=tmp_path, encoders=["vit_b16", "resnet50"], datasets=["aptos2019"])
    vit, _ = remaining_work(plan, N_IMAGES)
    operations = (3_662 + 15 * 732) * plan.encoders["vit_b16"].cost.gflops
    assert vit.gpu_hours == pytest.approx(operations / 15_000 / 3600)


def test_what_the_store_has_is_not_counted(tmp_path):
    names = ["resnet50", "vit_b16"]
    before, other = remaining_work(plan_of(store=tmp_path, encoders=names), N_IMAGES)
    folder = tmp_path / "features" / "resnet50" / "chexpert"
    folder.mkdir(parents=True)
    for file in (folder / "clean.parquet", folder / "perturbed.parquet"):
        file.write_bytes(b"")
    after, same = remaining_work(plan_of(store=tmp_path, encoders=names), N_IMAGES)
    assert before.n_clean - after.n_clean == N_IMAGES["chexpert"]
    assert before.n_perturbed - after.n_perturbed == 15 * round(0.2 * N_IMAGES["chexpert"])
    assert same == other


def test_images_are_counted_in_the_index_where_there_is_one(tmp_path):
    definitions: Mapping = plan_of(store=tmp_path).datasets
    counted = {name: count_images(each, str(tmp_path)) for name, each in definitions.items()}
    assert counted == N_IMAGES
    folder = tmp_path / "data" / "aptos2019"
    folder.mkdir(parents=True)
    pl.DataFrame({"sample": ["a", "b"]}).write_parquet(folder / "index.parquet")
    assert count_images(definitions["aptos2019"], str(tmp_path)) == 2


def test_a_dataset_of_unknown_size_is_named_and_not_counted(capsys, tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text(
        "mine: {label: Mine, adapter: folder, domain: skin, task: multiclass, classes: [a, b]}\n"
    )
    options = (
        f"dataset_definitions=[{own}]", "datasets=[mine]", "shift=[]", f"store={tmp_path}",
        f"data_root={tmp_path}", "encoders=[untrained_vit_tiny,statistics]",
    )  # fmt: skip
    status, lines, _ = examined(capsys, "--config", *options)
    assert status == 1
    assert "not counted, for want of their number of images: mine" in lines
