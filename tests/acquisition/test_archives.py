"""Archives: whole or not at all, inside their folder, never over a file that is there."""

import errno
import stat
import zipfile
from collections import namedtuple
from pathlib import Path

import pytest

from crsbench.acquisition import archives
from crsbench.acquisition.archives import unpack
from crsbench.errors import DataError

ENTRIES = {"images/a.jpg": b"first", "images/b.jpg": b"second", "labels.csv": b"image\n"}
WANTED = ("images", "labels.csv")


def pack(path: Path, entries: dict[str, bytes] = ENTRIES, *, zip64: bool = False) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, content in entries.items():
            with archive.open(zipfile.ZipInfo(name), "w", force_zip64=zip64) as entry:
                entry.write(content)
    return path


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("zip64", [False, True])
def test_what_is_wanted_is_unpacked(root, tmp_path, zip64):
    archive = pack(tmp_path / "a.zip", {**ENTRIES, "test/c.jpg": b"third"}, zip64=zip64)
    assert unpack(archive, root, wanted=WANTED) == list(WANTED)
    assert files(root) == ENTRIES


def test_members_larger_than_a_zip_of_old_can_say_are_read_by_their_zip64_fields(root, tmp_path):
    archive = pack(tmp_path / "a.zip", zip64=True)
    raw = archive.read_bytes()
    assert b"\x01\x00\x10\x00" in raw  # the extra field: id 1, two sizes of 8 bytes
    assert raw[18:26] == b"\xff" * 8  # the sizes of old say: look there
    unpack(archive, root, wanted=WANTED)
    assert files(root) == ENTRIES


def test_what_is_there_already_is_not_touched(root, tmp_path):
    (root / "labels.csv").write_text("mine")
    assert unpack(pack(tmp_path / "a.zip"), root, wanted=WANTED) == ["images"]
    assert (root / "labels.csv").read_text() == "mine"


@pytest.mark.parametrize(
    "name", ["../evil.txt", "/etc/evil", "images/../../evil", "C:/evil", "images\\..\\..\\evil"]
)
def test_an_entry_that_would_leave_the_folder_refuses_the_archive(root, tmp_path, name):
    archive = pack(tmp_path / "a.zip", {**ENTRIES, name: b"boo"})
    with pytest.raises(DataError, match=r"a\.zip: entry .*evil.* would leave the folder; nothing"):
        unpack(archive, root, wanted=WANTED)
    assert files(tmp_path).keys() == {"a.zip"}


def test_a_link_refuses_the_archive(root, tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        link = zipfile.ZipInfo("images")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc")
    with pytest.raises(DataError, match="entry 'images' is a link"):
        unpack(tmp_path / "a.zip", root, wanted=WANTED)
    assert files(root) == {}


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_stands_twice_refuses_the_archive(root, tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for content in ("one", "two"):
            archive.writestr("images/a.jpg", content)
    with pytest.raises(DataError, match=r"entry 'images/a\.jpg' stands there twice"):
        unpack(tmp_path / "a.zip", root, wanted=["images"])


@pytest.mark.parametrize("share", [0.3, 0.9, 0.0])
def test_a_truncated_archive_is_named_and_nothing_of_it_stays(root, tmp_path, share):
    archive = pack(tmp_path / "a.zip")
    raw = archive.read_bytes()
    archive.write_bytes(raw[: int(share * len(raw))])
    with pytest.raises(DataError, match=r"a\.zip: truncated or damaged: "):
        unpack(archive, root, wanted=WANTED)
    assert list(root.iterdir()) == []


def test_a_damaged_entry_is_found_by_its_checksum_and_nothing_stays(root, tmp_path):
    archive = pack(tmp_path / "a.zip")
    archive.write_bytes(archive.read_bytes().replace(b"second", b"sEcond"))
    with pytest.raises(DataError, match=r"truncated or damaged: Bad CRC-32 for file 'images/b"):
        unpack(archive, root, wanted=WANTED)
    assert list(root.iterdir()) == []


def test_an_archive_of_another_layout_is_an_error(root, tmp_path):
    archive = pack(tmp_path / "a.zip", {"top/images/a.jpg": b"first"})
    with pytest.raises(DataError, match=r"no images, labels\.csv at its top; .* unpack it by hand"):
        unpack(archive, root, wanted=WANTED)


def test_room_is_looked_for_before_anything_is_unpacked(root, tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")(0, 0, 3)
    monkeypatch.setattr(archives.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(DataError, match=r"the disk has 0 MB free, expected .* the archive is kept"):
        unpack(pack(tmp_path / "a.zip"), root, wanted=WANTED)


def test_a_disk_that_fills_up_leaves_nothing_half_unpacked(root, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(archives.zipfile.ZipFile, "extract", full)
    with pytest.raises(DataError, match=r"a\.jpg: the disk is full"):
        unpack(pack(tmp_path / "a.zip"), root, wanted=WANTED)
    assert list(root.iterdir()) == []


def test_what_a_killed_job_left_half_unpacked_is_removed_and_not_taken(root, tmp_path):
    archive = pack(tmp_path / "a.zip")
    half = tmp_path / "a.zip.unpacking"
    (half / "images").mkdir(parents=True)
    (half / "images" / "old.jpg").write_bytes(b"half")
    unpack(archive, root, wanted=WANTED)
    assert files(root) == ENTRIES
    assert not half.exists()


def test_an_archive_of_an_unknown_compression_is_to_be_unpacked_by_hand(root, tmp_path):
    archive = pack(tmp_path / "a.zip")
    raw = archive.read_bytes()
    central = raw.index(b"PK\x01\x02")
    deflate64 = (9).to_bytes(2, "little")
    raw = raw[:8] + deflate64 + raw[10 : central + 10] + deflate64 + raw[central + 12 :]
    archive.write_bytes(raw)
    with pytest.raises(DataError, match=r"a\.zip: cannot be unpacked here: .*; unpack it by hand"):
        unpack(archive, root, wanted=WANTED)
    assert list(root.iterdir()) == []
