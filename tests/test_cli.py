"""The command line: what each verb prints or writes, and that errors are one clear line."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from crsbench.axes import AXES_TABLE
from crsbench.cli import main
from crsbench.crs import AXES
from crsbench.reference_files import load_reference

ROOT = Path(__file__).parents[1]
PUBLISHED = "resources/references/crs-bench-2608.22059.json"
TINY = ("--configfile", "config/tiny.yaml", "--config")


@pytest.fixture(autouse=True)
def _in_the_project(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.fixture
def store(tmp_path):
    """The folder of a tiny run that has its axes."""
    random = np.random.default_rng(0)
    rows = [
        {"encoder": encoder, "dataset": "tiny_radiograph"}
        | dict(zip(AXES, random.uniform(0.5, 1, 4).tolist(), strict=True))
        for encoder in ("tiny_resnet", "tiny_statistics")
    ]
    pl.DataFrame(rows, schema=AXES_TABLE).write_csv(tmp_path / "axes.csv")
    return tmp_path


def run(capsys, *arguments):
    status = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def fails(capsys, *arguments):
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (1, "")
    assert err.startswith("crsbench: ")
    assert err.count("\n") == 1
    return err


def freeze(capsys, store, name):
    return run(capsys, "reference", "freeze", name, *TINY, f"store={store}")


def test_plan_counts_cells_and_records(capsys):
    status, out, _ = run(capsys, "plan", "--configfile", "config/tiny.yaml")
    assert status == 0
    assert "2 cells, 96 run records, 48 metric rows" in out


def test_plan_counts_further_probes_apart(capsys):
    tiny = ("plan", "--configfile", "config/tiny.yaml")
    _, one, _ = run(capsys, *tiny)
    status, out, _ = run(capsys, *tiny, "--config", "probes=[logistic,knn]")
    assert status == 0
    assert out == one + "counted apart, not scored: knn: 96 run records, 48 metric rows\n"


def test_a_run_without_scores_says_what_to_do(capsys, tmp_path):
    assert "no table of scores yet; run snakemake" in fails(
        capsys, "show", *TINY, f"store={tmp_path}"
    )


class TestFreeze:
    def test_the_reference_holds_the_runs_panel_axes_and_weights(self, capsys, store):
        path = store / "mine.json"
        status, out, _ = freeze(capsys, store, path)
        reference = load_reference(path)
        assert status == 0
        assert out == f"{path}: reference mine {reference.digest}\n"
        assert [member.encoder for member in reference.panel] == ["tiny_resnet", "tiny_statistics"]
        assert reference.panel[1].label == "Colour and texture"
        assert reference.run == str(store)
        axes = pl.read_csv(store / "axes.csv").select(AXES).to_numpy()
        np.testing.assert_array_equal(reference.cells.values[:, 0], axes)

    def test_it_never_overwrites(self, capsys, store):
        path = store / "mine.json"
        freeze(capsys, store, path)
        before = path.read_bytes()
        err = fails(capsys, "reference", "freeze", path, *TINY, f"store={store}")
        assert "exists; a reference is never overwritten: choose another name" in err
        assert path.read_bytes() == before

    def test_a_name_is_a_file_among_the_references(self, capsys, store, tmp_path, monkeypatch):
        for name in ("config", "workflow"):
            (tmp_path / name).symlink_to(ROOT / name)
        monkeypatch.chdir(tmp_path)
        assert freeze(capsys, store, "spring")[0] == 0
        assert load_reference("resources/references/spring.json").name == "spring"

    def test_a_run_without_axes_says_what_to_do(self, capsys, tmp_path):
        err = fails(capsys, "reference", "freeze", "mine", *TINY, f"store={tmp_path}")
        assert "axes.csv: no axes yet; run snakemake with the same options" in err

    def test_a_panel_that_cannot_be_scored_is_no_reference(self, capsys, store):
        path = store / "axes.csv"
        pl.read_csv(path, schema=AXES_TABLE).head(1).write_csv(path)
        err = fails(capsys, "reference", "freeze", store / "r.json", *TINY, f"store={store}")
        assert "a panel needs two encoders or more, not 1" in err
        assert not (store / "r.json").exists()

    @pytest.mark.parametrize("name", ["v1.2", "folder/mine", "mine.csv"])
    def test_a_name_that_is_neither_name_nor_path_is_refused(self, capsys, store, name):
        err = fails(capsys, "reference", "freeze", name, *TINY, f"store={store}")
        assert "expected a name without dots, or a path to a .json" in err


class TestScore:
    def write(self, folder, *lines):
        path = folder / "candidates.csv"
        path.write_text("\n".join(lines) + "\n")
        return path

    def test_a_candidate_stands_among_the_members_whose_scores_stay(self, capsys, tmp_path):
        path = self.write(
            tmp_path, "encoder," + ",".join(AXES), "mine,0.9,0.8,1.0,0.7", "other,0.1,0.1,0.1,0.1"
        )
        status, out, _ = run(capsys, "score", path, "--reference", PUBLISHED)
        lines = out.splitlines()
        assert status == 0
        assert len(lines[1:18]) == 15 + 2
        assert lines[1].split()[1:3] == ["PanDerm", "0.704"]
        assert lines[4].split()[1] == "mine"
        assert "candidates: mine, other" in out
        assert "mine: at or beyond an anchor on label_efficiency" in out

    def test_a_run_is_scored_against_its_own_reference(self, capsys, store):
        freeze(capsys, store, store / "mine.json")
        header = "encoder,dataset," + ",".join(AXES)
        path = self.write(store, header, "new,tiny_radiograph,0.6,0.6,0.6,0.6")
        status, out, _ = run(capsys, "score", path, "--reference", store / "mine.json")
        assert status == 0
        assert "Colour and texture" in out
        assert "reference mine" in out

    def test_the_axes_of_a_run_are_scored_as_they_are_and_an_unknown_one_is_refused(
        self, capsys, store
    ):
        freeze(capsys, store, store / "mine.json")
        status, _, _ = run(capsys, "score", store / "axes.csv", "--reference", store / "mine.json")
        assert status == 0
        axes = pl.read_csv(store / "axes.csv").with_columns(fairness=pl.lit(0.5))
        axes.write_csv(store / "more.csv")
        err = fails(capsys, "score", store / "more.csv", "--reference", store / "mine.json")
        assert "unknown axis 'fairness'" in err

    def test_nothing_is_written(self, capsys, tmp_path):
        path = self.write(tmp_path, "encoder," + ",".join(AXES), "mine,0.9,0.8,1.0,0.7")
        before = (ROOT / PUBLISHED).read_bytes()
        run(capsys, "score", path, "--reference", PUBLISHED)
        assert [file.name for file in tmp_path.iterdir()] == ["candidates.csv"]
        assert (ROOT / PUBLISHED).read_bytes() == before

    def test_axes_in_the_wrong_units_are_refused(self, capsys, tmp_path):
        path = self.write(
            tmp_path, "encoder,dataset," + ",".join(AXES), "mine,isic2019,0.9,0.9,0.9,0.9"
        )
        err = fails(capsys, "score", path, "--reference", PUBLISHED)
        assert "has a column dataset, so raw axes" in err

    def test_an_altered_reference_is_refused(self, capsys, store):
        freeze(capsys, store, store / "mine.json")
        content = json.loads((store / "mine.json").read_text())
        content["axes"][0]["discrimination"] += 0.01
        (store / "mine.json").write_text(json.dumps(content))
        err = fails(capsys, "score", store / "axes.csv", "--reference", store / "mine.json")
        assert "does not match" in err

    def test_files_that_are_not_there_are_named(self, capsys, tmp_path):
        err = fails(capsys, "score", tmp_path / "none.csv", "--reference", PUBLISHED)
        assert "none.csv: no such file of axes" in err
        err = fails(capsys, "score", tmp_path / "none.csv", "--reference", "none.json")
        assert "none.json: no such reference; `crsbench reference freeze` writes one" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "--config", "seeds"], r"--config: expected KEY=VALUE, got 'seeds'"),
        (["plan", "--config", "sedes=[0]"], "sedes: unknown key"),
        (["show", "--configfile", "none.yaml"], "none.yaml: no such configuration file"),
    ],
)
def test_a_wrong_argument_is_one_line_that_names_it(capsys, arguments, message):
    assert message in fails(capsys, *arguments)


def test_an_unknown_verb_lists_those_there_are(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["socre"])
    assert "plan" in capsys.readouterr().err
