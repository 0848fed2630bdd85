"""Images read and written: scaling, every format, and bad files (row A3 of the walkthrough)."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from fresh_process import python
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from cudnnpy._process.installation import with_extra
from cudnnpy.cli import edges
from cudnnpy.cli.arguments import UsageError
from cudnnpy.errors import CudnnError


def write(path, pixels, **options):
    Image.fromarray(np.asarray(pixels)).save(path, **options)
    return path


def save(path, values):
    """Write an image as the command does."""
    Path(path).write_bytes(edges.encode(str(path), edges.to_levels(values)))


def test_load_scales_to_0_and_1_over_all_channels(tmp_path):
    pixels = np.array([[[10, 60, 110], [35, 85, 60]]], np.uint8)
    loaded = edges.load(write(tmp_path / "p.png", pixels))
    assert loaded.shape == (1, 1, 2, 3)
    assert loaded.dtype == np.float32
    np.testing.assert_allclose(loaded[0], (pixels - 10.0) / 100, rtol=1e-6)


def test_save_drops_negatives_then_scales_to_0_and_255(tmp_path):
    values = np.array([-7.0, 0.0, 1.0, 2.0, 3.9, 4.0], np.float32).reshape(1, 1, 2, 3)
    save(tmp_path / "p.png", values)
    written = np.asarray(Image.open(tmp_path / "p.png"))
    assert written.shape == (1, 2, 3)
    assert written.reshape(-1).tolist() == [0, 0, 64, 128, 249, 255]


@given(hnp.arrays(np.uint8, st.tuples(st.integers(1, 9), st.integers(1, 9), st.just(3))))
def test_an_image_comes_back_in_its_size_and_order(tmp_path_factory, pixels):
    path = tmp_path_factory.mktemp("p") / "p.png"
    loaded = edges.load(write(path, pixels))
    assert loaded.shape == (1, *pixels.shape)
    low, high = int(pixels.min()), int(pixels.max())
    if low == high:
        assert not loaded.any()
    else:
        assert loaded.min() == 0
        assert loaded.max() == 1
        np.testing.assert_allclose(loaded[0] * (high - low) + low, pixels, atol=1e-3)
    save(path, loaded)
    scale = 255 / max(high - low, 1)
    assert np.abs(np.asarray(Image.open(path)) - (pixels - float(low)) * scale).max() <= 0.501


def test_greyscale_fills_three_channels(tmp_path):
    loaded = edges.load(write(tmp_path / "p.png", np.uint8([[0, 51, 255]])))
    np.testing.assert_allclose(loaded[0, 0], [[0] * 3, [0.2] * 3, [1] * 3], rtol=1e-6)


def test_sixteen_bits_are_not_cut_off(tmp_path):
    loaded = edges.load(write(tmp_path / "p.png", np.uint16([[0, 300, 30000, 60000]])))
    np.testing.assert_allclose(loaded[0, 0, :, 1], [0, 0.005, 0.5, 1], rtol=1e-6)


def test_warnings_about_metadata_and_large_images_are_not_the_users(tmp_path, monkeypatch, recwarn):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 640 * 400 - 1)
    assert edges.load(edges.SAMPLE).shape == (1, 400, 640, 3)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 320 * 400 - 1)
    with pytest.raises(UsageError, match=r"sample\.png: .*exceeds limit"):
        edges.load(edges.SAMPLE)
    assert list(recwarn) == []


def test_floats_that_are_not_finite_are_refused(tmp_path):
    path = write(tmp_path / "p.tiff", np.float32([[0, np.nan]]))
    with pytest.raises(UsageError, match="not finite"):
        edges.load(path)


def test_transparency_is_laid_on_white(tmp_path):
    pixels = np.uint8([[[0, 0, 0, 255], [90, 10, 20, 0], [0, 0, 0, 51]]])
    loaded = edges.load(write(tmp_path / "p.png", pixels))
    np.testing.assert_allclose(loaded[0, 0], [[0] * 3, [1] * 3, [0.8] * 3], atol=1e-6)


def test_the_cameras_orientation_is_applied(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # turn a quarter clockwise to see it upright
    loaded = edges.load(write(tmp_path / "p.png", np.uint8([[0, 255], [255, 255], [255, 255]]), exif=exif))
    assert loaded.shape == (1, 2, 3, 3)
    assert np.argwhere(loaded[0, :, :, 0] == 0).tolist() == [[0, 2]]


def png(width, height):
    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


GREY = np.linspace(0, 1, 27, dtype=np.float32).reshape(1, 3, 3, 3)


@pytest.mark.parametrize(("ending", "format"), [("png", "PNG"), ("JPEG", "JPEG"), ("bmp", "BMP"), ("tif", "TIFF")])
def test_the_ending_names_the_format(tmp_path, ending, format):
    save(tmp_path / f"p.{ending}", GREY)
    assert Image.open(tmp_path / f"p.{ending}").format == format


def test_damaged_files_never_raise_anything_else(tmp_path):
    """Bytes changed, lost or added anywhere in files of several formats."""
    random = np.random.default_rng(11)
    sources = []
    for ending in ("png", "jpg", "gif", "bmp", "tiff", "webp", "ppm", "tga", "pcx", "ico", "dds", "sgi", "jp2"):
        write(tmp_path / f"p.{ending}", random.integers(0, 256, (6, 8, 3), np.uint8))
        sources.append((tmp_path / f"p.{ending}").read_bytes())
    damaged = tmp_path / "damaged"
    messages = []
    for _ in range(600):
        content = bytearray(sources[random.integers(len(sources))])
        for _ in range(random.integers(1, 4)):
            at = int(random.integers(min(len(content), 200)))
            match random.integers(4):
                case 0:
                    content[at] = int(random.integers(256))
                case 1:
                    del content[at : at + int(random.integers(1, 9))]
                case 2:
                    content[at:at] = random.bytes(3)
                case 3:
                    del content[len(content) // 2 + at :]
        damaged.write_bytes(content)
        try:
            edges.load(damaged)
        except UsageError as error:
            messages.append(str(error))
    assert 100 < len(messages) < 600
    assert {message.startswith(f"{damaged}: ") for message in messages} == {True}
    assert {len(message.splitlines()) for message in messages} == {1}


def test_without_pillow_the_error_says_what_to_install():
    program = (
        "import sys; sys.modules['PIL'] = None\n"
        "from cudnnpy.cli import edges\n"
        "try: edges.load(edges.SAMPLE)\n"
        "except ImportError as error: print(error)"
    )
    assert python(program) == f"images need Pillow: pip install {with_extra('images')}\n"


def test_a_failure_of_the_encoder_is_one_line(monkeypatch):
    def full(self, file, format):
        file.write(b"half an im")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Image.Image, "save", full)
    with pytest.raises(UsageError, match=r"^p\.png: cannot be written as PNG: \[Errno 28\] No space left on device$"):
        edges.encode("p.png", np.zeros((2, 2, 3), np.uint8))


def test_a_result_that_is_not_finite_is_an_error_of_the_device():
    with pytest.raises(CudnnError, match="not finite"):
        edges.to_levels(np.full((1, 2, 2, 3), np.nan, np.float32))
