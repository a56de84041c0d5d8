"""Acquiring: what is there stays, what is missing comes if it may, and a user learns the rest."""

import gzip
import hashlib
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from PIL import Image

from crsbench.acquisition import receipts
from crsbench.acquisition.receipts import acquire
from crsbench.datasets.definitions import DatasetDefinition, load_definitions
from crsbench.errors import DataError

OFFICIAL = Path(__file__).parents[2] / "config" / "datasets.yaml"
ISIC = ("ISIC_2019_Training_Input.zip", "ISIC_2019_Training_Metadata.csv",
        "ISIC_2019_Training_GroundTruth.csv")  # fmt: skip


def official(name: str, data_root: Path) -> DatasetDefinition:
    return load_definitions([OFFICIAL], data_root=data_root, store="results")[name]


def with_release(definition: DatasetDefinition, **changes) -> DatasetDefinition:
    release = definition.release.model_copy(update=changes)
    return definition.model_copy(update={"release": release})


def jpeg(seed: int) -> bytes:
    raw = io.BytesIO()
    Image.new("RGB", (6, 5), (seed * 40, 10, 10)).save(raw, "JPEG")
    return raw.getvalue()


@pytest.fixture
def run(tmp_path, patience):
    def run(definition: DatasetDefinition) -> dict:
        return acquire(definition, not_acquired=tmp_path / "not_acquired.csv", patience=patience)

    return run


def killed_after(done: Callable) -> Callable:
    """Return a function that does the same, and then never comes back."""

    def killed(*arguments: object, **named: object) -> None:
        done(*arguments, **named)
        raise KeyboardInterrupt

    return killed


def tree(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


class TestIsic:
    """A release that anybody may fetch, without published digests."""

    @pytest.fixture
    def definition(self, server, tmp_path):
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as opened:
            for number in range(3):
                opened.writestr(f"ISIC_2019_Training_Input/ISIC_{number}.jpg", jpeg(number))
        header = "image,MEL,NV,BCC,AK,BKL,DF,VASC,SCC,UNK"
        bodies = (
            archive.getvalue(),
            b"image,lesion_id\nISIC_0,HAM_1\nISIC_1,\nISIC_2,BCN_2\n",
            f"{header}\nISIC_0,1{',0' * 8}\nISIC_1,0,1{',0' * 7}\nISIC_2,1{',0' * 8}\n".encode(),
        )
        definition = official("isic2019", tmp_path / "data")
        assert tuple(file.name for file in definition.release.files) == ISIC
        for name, body in zip(ISIC, bodies, strict=True):
            server.add(f"/{name}", body)
        files = [
            remote.model_copy(update={"urls": (server.url("/dead"), server.url(f"/{remote.name}"))})
            for remote in definition.release.files
        ]
        return with_release(definition, files=tuple(files))

    def test_it_is_fetched_unpacked_and_locked(self, run, definition, server):
        receipt = run(definition)
        assert sorted(tree(definition.root)) == [
            "ISIC_2019_Training_GroundTruth.csv",
            *(f"ISIC_2019_Training_Input/ISIC_{number}.jpg" for number in range(3)),
            "ISIC_2019_Training_Metadata.csv",
        ]
        assert not (definition.root / receipts.STAGING).exists()
        assert receipt["fetched"] == sorted([*ISIC[1:], "ISIC_2019_Training_Input"])
        lock = json.loads((definition.root.parent / "isic2019.lock.json").read_text())
        body = server.pages[f"/{ISIC[0]}"].body
        assert lock[ISIC[0]]["sha256"] == hashlib.sha256(body).hexdigest()
        assert lock[ISIC[0]]["bytes"] == len(body)

    def test_the_receipt_is_the_same_when_nothing_is_left_to_fetch(self, run, definition, server):
        first = run(definition)
        asked = len(server.seen)
        assert run(definition) == first
        assert len(server.seen) == asked

    def test_an_archive_that_a_killed_job_had_unpacked_is_locked_and_removed(
        self, run, definition, server, monkeypatch
    ):
        with monkeypatch.context() as patched:
            patched.setattr(receipts, "unpack", killed_after(receipts.unpack))
            with pytest.raises(KeyboardInterrupt):
                run(definition)
        archive = definition.root / receipts.STAGING / ISIC[0]
        assert archive.is_file()
        receipt = run(definition)
        assert not archive.parent.exists()
        assert receipt["fetched"] == sorted([*ISIC[1:], "ISIC_2019_Training_Input"])
        assert len(server.sent(f"/{ISIC[0]}")) == 1

    @pytest.mark.parametrize("n_bytes", [None, 100], ids=["whole", "truncated"])
    def test_an_archive_that_is_not_what_was_unpacked_is_left_alone(
        self, run, definition, server, n_bytes
    ):
        run(definition)
        (definition.root.parent / "isic2019.lock.json").unlink()  # as if all were the user's
        before = tree(definition.root)
        staging = definition.root / receipts.STAGING
        staging.mkdir()
        (staging / ISIC[0]).write_bytes(server.pages[f"/{ISIC[0]}"].body[:n_bytes])
        assert run(definition)["fetched"] == []
        assert (staging / ISIC[0]).is_file()
        assert before.items() <= tree(definition.root).items()

    def test_files_of_the_user_are_left_as_they_are(self, run, definition, server):
        definition.root.mkdir(parents=True)
        mine = definition.root / ISIC[1]
        mine.write_text("image,lesion_id\nISIC_0,mine\n")
        before = mine.stat().st_mtime_ns
        receipt = run(definition)
        assert mine.stat().st_mtime_ns == before
        assert ISIC[1] not in receipt["fetched"]
        staging = definition.root / receipts.STAGING
        staging.mkdir()
        (staging / ISIC[1]).write_text("from a killed job")
        assert run(definition) == receipt
        assert mine.stat().st_mtime_ns == before
        assert server.sent(f"/{ISIC[1]}") == []

    def test_data_in_place_are_only_recorded(self, run, definition, server):
        run(definition)
        (definition.root.parent / "isic2019.lock.json").unlink()
        before, asked = tree(definition.root), len(server.seen)
        receipt = run(definition)
        assert receipt["fetched"] == []
        assert receipt["label_files"][ISIC[2]]["bytes"] == len(before[ISIC[2]])
        assert tree(definition.root) == before
        assert len(server.seen) == asked

    def test_a_file_that_comes_otherwise_than_at_first_is_refused(self, run, definition, server):
        run(definition)
        first = hashlib.sha256(server.pages[f"/{ISIC[1]}"].body).hexdigest()
        server.pages[f"/{ISIC[1]}"].body += b"ISIC_3,\n"
        got = hashlib.sha256(server.pages[f"/{ISIC[1]}"].body).hexdigest()
        (definition.root / ISIC[1]).unlink()
        message = (
            rf"{ISIC[1]}: not fetched .*SHA-256 {got}, expected {first} as first seen "
            r"\(.*isic2019\.lock\.json; if its publisher has replaced it on purpose, remove its"
        )
        with pytest.raises(DataError, match=message):
            run(definition)
        assert not (definition.root / ISIC[1]).exists()

    def test_an_archive_that_was_damaged_as_sent_is_fetched_anew(self, run, definition, server):
        page = server.pages[f"/{ISIC[0]}"]
        whole, page.body = page.body, page.body[:-30]
        with pytest.raises(
            DataError, match=r"Input\.zip: truncated or damaged: .*; it was removed"
        ):
            run(definition)
        assert tree(definition.root.parent) == {}
        page.body = whole
        run(definition)
        assert (definition.root / ISIC[2]).is_file()

    def test_without_any_mirror_the_steps_by_hand_are_printed(self, run, definition, server):
        server.pages.clear()
        with pytest.raises(DataError, match=r"(?s)isic2019: .* not found; .*by itself.*404"):
            run(definition)


class TestAptos:
    """A release behind Kaggle's client."""

    @pytest.fixture
    def archive(self, tmp_path):
        path = tmp_path / "packed.zip"
        with zipfile.ZipFile(path, "w") as opened:
            for name in ("train.csv", "test.csv", "train_images/a.png", "test_images/b.png"):
                opened.writestr(name, "id_code,diagnosis\na,0\n")
        return path

    @pytest.fixture
    def definition(self, archive, tmp_path, monkeypatch):
        def download(competition, folder):
            folder.mkdir(parents=True)
            return archive.rename(folder / f"{competition}.zip")

        monkeypatch.setattr(receipts, "download_competition", download)
        definition = official("aptos2019", tmp_path / "data")
        packed, table = definition.release.files
        md5 = hashlib.md5(archive.read_bytes()).hexdigest()
        return with_release(definition, files=(packed.model_copy(update={"md5": md5}), table))

    def test_the_labelled_part_is_unpacked(self, run, definition):
        receipt = run(definition)
        assert sorted(tree(definition.root)) == ["train.csv", "train_images/a.png"]
        assert receipt["fetched"] == ["train.csv", "train_images"]

    def test_another_archive_is_refused(self, run, definition, tmp_path):
        packed, table = official("aptos2019", tmp_path / "data").release.files
        published = packed.md5
        with pytest.raises(
            DataError,
            match=rf"(?s)accept the rules.*MD5 .*, expected {published}".replace(
                "accept", "Accept"
            ),
        ):
            run(with_release(definition, files=(packed, table)))
        assert tree(definition.root) == {}

    def test_a_refusal_comes_with_the_steps(self, run, definition, monkeypatch):
        def refuse(*_):
            raise DataError("Kaggle refused (403): the rules")

        monkeypatch.setattr(receipts, "download_competition", refuse)
        with pytest.raises(DataError, match=r"(?s)aptos2019: its folder.*kaggle competitions.*403"):
            run(definition)


def test_chexpert_is_never_fetched_and_its_steps_are_printed(run, tmp_path, server):
    definition = official("chexpert", tmp_path / "data")
    assert definition.release.authentication == "manual"
    assert all(not file.urls for file in definition.release.files)
    with pytest.raises(DataError, match=r"(?s)chexpert: its folder.*Register and sign.*azcopy"):
        run(definition)
    assert not definition.root.exists()


class TestMimic:
    """A release behind an account, whose images come one by one."""

    PATHS = tuple(f"files/p10/p1000000{n}/s5000000{n}/d{n}.jpg" for n in range(4))

    @pytest.fixture
    def definition(self, server, tmp_path, netrc):
        netrc.write_text("machine 127.0.0.1 login ann password hush\n")
        definition = official("mimic_cxr", tmp_path / "data")
        views = ["AP", "PA", "LATERAL", "AP"]
        sides = ["test", "test", "test", "train"]
        findings = ",".join(sorted(definition.classes))
        tables = {
            "metadata": "dicom_id,subject_id,study_id,ViewPosition\n"
            + "".join(f"d{n},1000000{n},5000000{n},{view}\n" for n, view in enumerate(views)),
            "split": "dicom_id,study_id,subject_id,split\n"
            + "".join(f"d{n},5000000{n},1000000{n},{side}\n" for n, side in enumerate(sides)),
            "chexpert": f"subject_id,study_id,{findings}\n"
            + "".join(f"1000000{n},5000000{n}{',1.0' * 14}\n" for n in range(4)),
        }
        bodies = {
            f"mimic-cxr-2.0.0-{kind}.csv.gz": gzip.compress(text.encode())
            for kind, text in tables.items()
        }
        bodies["IMAGE_FILENAMES"] = "\n".join(self.PATHS).encode()
        images = {path: jpeg(number) for number, path in enumerate(self.PATHS)}
        bodies["SHA256SUMS.txt"] = "".join(
            f"{hashlib.sha256(body).hexdigest()} {path}\n" for path, body in images.items()
        ).encode()
        for path, body in {**bodies, **images}.items():
            server.add(f"/{path}", body, password="ann:hush")
        files = [
            remote.model_copy(update={"urls": (server.url(f"/{remote.name}"),)})
            for remote in definition.release.files
        ]
        listing = definition.release.images.model_copy(update={"base": server.url("/")})
        return with_release(definition, files=tuple(files), images=listing)

    def test_the_frontal_test_images_come_and_no_others(self, run, definition, server):
        run(definition)
        there = [path for path in tree(definition.root) if path.startswith("files/")]
        assert there == list(self.PATHS[:2])
        asked = {request.path for request in server.seen}
        assert not {f"/{path}" for path in self.PATHS[2:]} & asked

    def test_images_that_are_there_are_not_fetched(self, run, definition, server):
        image = definition.root / self.PATHS[0]
        image.parent.mkdir(parents=True)
        image.write_bytes(b"mine")
        run(definition)
        assert image.read_bytes() == b"mine"
        assert server.sent(f"/{self.PATHS[0]}") == []

    def test_a_damaged_image_is_fetched_again(self, run, definition, server):
        page = server.pages[f"/{self.PATHS[1]}"]
        page.statuses = [404]
        run(definition)
        assert len(server.sent(f"/{self.PATHS[1]}")) == 2

    def test_what_still_fails_is_listed_and_can_be_accepted(
        self, run, definition, server, tmp_path
    ):
        server.pages[f"/{self.PATHS[1]}"].body += b"x"
        message = (
            rf"mimic_cxr: 1 of 2 images could not be fetched, such as {self.PATHS[1]} \(.*SHA-256 "
            r".*, expected .* as published.*\); .*not_acquired\.csv lists all\. Run again"
        )
        with pytest.raises(DataError, match=message):
            run(definition)
        assert len(server.sent(f"/{self.PATHS[1]}")) == 3
        assert (definition.root / self.PATHS[0]).is_file()
        assert not (definition.root / self.PATHS[1]).exists()
        listed = tmp_path / "not_acquired.csv"
        assert pl.read_csv(listed)["sample"].to_list() == ["d1"]
        run(definition.model_copy(update={"exclusions": listed}))

    def test_an_image_that_is_not_in_the_list_is_named(self, run, definition, server):
        names = server.pages["/IMAGE_FILENAMES"]
        names.body = names.body.replace(self.PATHS[1].encode(), b"files/other.jpg")
        with pytest.raises(DataError, match=r"1 of 2 images .*not in the list of images"):
            run(definition)

    @pytest.mark.parametrize(
        ("status", "message"),
        [
            (401, r"401: 127\.0\.0\.1 does not know the user .* into ~/\.netrc \(chmod 600\)"),
            (403, r"403: the account has no access to version 2\.1\.0: its own agreement is not"),
        ],
    )
    @pytest.mark.parametrize("path", ["SHA256SUMS.txt", PATHS[0]])
    def test_a_refusal_is_explained_and_ends_it(
        self, run, definition, server, status, message, path
    ):
        server.pages[f"/{path}"].statuses = [status] * 50
        with pytest.raises(DataError, match=message) as caught:
            run(definition)
        assert "hush" not in str(caught.value)
        assert len(server.sent(f"/{path}")) == 1

    def test_without_an_account_the_steps_are_printed(self, run, definition, server, netrc):
        netrc.unlink()
        with pytest.raises(DataError, match=r"(?s)credentialed PhysioNet.*netrc has no entry"):
            run(definition)
        assert server.seen == []

    def test_without_an_account_what_is_there_is_used(self, run, definition, netrc, caplog):
        run(definition)
        (definition.root / self.PATHS[0]).unlink()
        netrc.unlink()
        run(definition)
        assert "has no entry for the host: nothing is fetched" in caplog.text

    def test_no_password_is_written_anywhere(self, run, definition, tmp_path, caplog):
        caplog.set_level("DEBUG", logger="crsbench")
        run(definition)
        written = b"".join(tree(tmp_path).values()).replace((tmp_path / "netrc").read_bytes(), b"")
        assert b"hush" not in written
        assert "hush" not in caplog.text
