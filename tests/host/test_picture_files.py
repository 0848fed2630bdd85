"""Where a picture may be written, and that it is written whole or not at all, without changing what a file is."""

from __future__ import annotations

import io
import os
import resource
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import whole_pictures
from PIL import Image

from cudnnpy.cli import picture_files, pictures

ROOT = Path(__file__).resolve().parents[2]
GREY = np.linspace(0, 1, 27, dtype=np.float32).reshape(1, 3, 3, 3)
CONTENT = memoryview(bytes(range(256)) * 1000)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere/p.png", "no folder"),
        ("p.xyz", "'.xyz'"),
        ("p", "no ending"),
        ("folder.png", "is a folder"),
        ("there.png", "the file exists"),
    ],
)
def test_what_cannot_be_written_is_refused_before_and_at_the_end(tmp_path, name, words):
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "there.png").touch()
    for attempt in (picture_files.check_writable, lambda path: whole_pictures.save(path, GREY)):
        with pytest.raises(pictures.PictureError, match=words):
            attempt(tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.png", "there.png"]
    assert (tmp_path / "there.png").read_bytes() == b""


@pytest.mark.parametrize("exists", [False, True])
def test_no_permission(tmp_path, monkeypatch, exists):
    path = tmp_path / "p.png"
    if exists:
        path.touch()
    forbidden = path if exists else tmp_path
    monkeypatch.setattr(os, "access", lambda place, mode: Path(place) != forbidden)  # root would be let through
    with pytest.raises(pictures.PictureError, match="may not be written" if exists else "cannot be written"):
        picture_files.check_writable(path, overwrite=True)


def test_a_file_that_comes_while_computing_is_not_overwritten(tmp_path):
    path = tmp_path / "p.png"
    picture_files.check_writable(path)
    path.write_bytes(b"somebody else's")
    with pytest.raises(pictures.PictureError, match="the file exists"):
        picture_files.write(path, CONTENT)
    assert path.read_bytes() == b"somebody else's"


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o027])
def test_a_new_file_obeys_the_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        picture_files.write(tmp_path / "p.png", CONTENT)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "p.png").stat().st_mode) == 0o666 & ~umask
    assert (tmp_path / "p.png").read_bytes() == CONTENT


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o640, 0o666, 0o755])
@pytest.mark.parametrize("name", ["p.png", "link.png", "folder/link.png"])
def test_an_earlier_file_keeps_its_mode_and_links_to_it_stay(tmp_path, mode, name):
    path = tmp_path / "p.png"
    path.write_bytes(b"the earlier file")
    path.chmod(mode)
    (tmp_path / "link.png").symlink_to("p.png")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "link.png").symlink_to("../link.png")
    picture_files.write(tmp_path / name, CONTENT, overwrite=True)
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert path.read_bytes() == CONTENT
    assert (tmp_path / "link.png").readlink() == Path("p.png")
    assert (tmp_path / "folder" / "link.png").is_symlink()
    assert sorted(place.name for place in tmp_path.iterdir()) == ["folder", "link.png", "p.png"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_an_earlier_file_keeps_its_owner(tmp_path):
    path = tmp_path / "p.png"
    path.touch()
    os.chown(path, 1234, 5678)
    picture_files.write(path, CONTENT, overwrite=True)
    assert (path.stat().st_uid, path.stat().st_gid) == (1234, 5678)


def test_a_link_to_nothing_gets_its_file(tmp_path):
    (tmp_path / "link.png").symlink_to("new.png")
    picture_files.write(tmp_path / "link.png", CONTENT)
    assert (tmp_path / "link.png").is_symlink()
    assert (tmp_path / "new.png").read_bytes() == CONTENT


@pytest.mark.parametrize("link", [False, True])
def test_a_device_is_written_to_and_stays(tmp_path, link):
    place = Path(os.devnull)
    if link:
        place = tmp_path / "p.png"
        place.symlink_to(os.devnull)
    picture_files.write(place, CONTENT)
    picture_files.write(place, CONTENT, overwrite=True)
    assert place.is_char_device()
    assert place.is_symlink() == link


@pytest.mark.parametrize("kind", [stat.S_IFBLK, stat.S_IFSOCK])
def test_disks_and_sockets_are_refused_by_name(tmp_path, monkeypatch, kind):
    path = tmp_path / "p.png"
    path.touch()
    status = os.stat_result((kind | 0o666, *path.stat()[1:]))
    monkeypatch.setattr(picture_files, "_status", lambda _path: status)
    with pytest.raises(pictures.PictureError, match=r"p\.png: is a (block device|socket)"):
        picture_files.write(path, CONTENT, overwrite=True)


def test_a_device_needs_no_ending():
    assert picture_files.format_of("/dev/null") == "PNG"
    assert picture_files.format_of("/dev/null", "jpg") == "JPEG"


@pytest.mark.parametrize("earlier", [None, b"the earlier file"])
def test_a_disk_that_is_full_leaves_the_earlier_file_and_nothing_else(tmp_path, earlier):
    """A limit on the size of files stands for the disk: the write fails after a part."""
    path = tmp_path / "p.png"
    if earlier is not None:
        path.write_bytes(earlier)
    program = (
        "import os, sys\nfrom cudnnpy.cli import picture_files\n"
        "try: picture_files.write(sys.argv[1], memoryview(bytes(100_000)), overwrite=True)\n"
        "except picture_files.PictureError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        cwd=ROOT,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000)),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{path}: cannot be written: File too large\n"
    assert (path.read_bytes() if path.exists() else None) == earlier
    assert len(list(tmp_path.iterdir())) == (earlier is not None)


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(5, "Input/output error")])
@pytest.mark.parametrize("call", ["replace", "fchmod"])
def test_what_ends_it_leaves_the_earlier_file_and_nothing_else(tmp_path, monkeypatch, error, call):
    path = tmp_path / "p.png"
    path.write_bytes(b"the earlier file")

    def fail(*_):
        raise error

    monkeypatch.setattr(os, call, fail)
    with pytest.raises((KeyboardInterrupt, pictures.PictureError)):
        picture_files.write(path, CONTENT, overwrite=True)
    assert path.read_bytes() == b"the earlier file"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_encoding_opens_nothing(tmp_path, monkeypatch):
    def full(self, file, format):
        file.write(b"half a pic")
        raise OSError(28, "No space left on device")

    picture_files.format_of(tmp_path / "p.png")
    monkeypatch.setattr(picture_files, "format_of", lambda *_: "PNG")
    monkeypatch.setattr(picture_files, "_rejection_reason", lambda *_: None)
    monkeypatch.setattr(Image.Image, "save", full)
    with pytest.raises(pictures.PictureError, match="cannot be written as PNG: No space left on device"):
        whole_pictures.save(tmp_path / "p.png", GREY)
    assert list(tmp_path.iterdir()) == []


def test_every_format_that_is_accepted_holds_the_picture():
    """And none is refused that would."""
    Image.init()
    picture = Image.effect_noise((40, 30), 50).convert("RGB")
    accepted = 0
    for ending, kind in Image.registered_extensions().items():
        file = io.BytesIO()
        try:
            picture.save(file, format=kind)
            size = Image.open(file).size if kind in Image.OPEN else picture.size
        except Image.UnidentifiedImageError:
            size = picture.size
        except Exception:
            size = None
        try:
            found = picture_files.format_of(f"p{ending}")
            picture_files.check_size(f"p{ending}", found, *picture.size)
        except picture_files.PictureError:
            found = None
        assert found == (kind if size == picture.size else None), ending
        accepted += found is not None
    assert accepted > 20
