"""Pictures read and written: scaling, every kind of file, and what is refused (rows A3 of the walkthrough)."""

from __future__ import annotations

import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import whole_pictures
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from cudnnpy._installation import with_extra
from cudnnpy.cli import pictures
from tools import draw_sample

ROOT = Path(__file__).resolve().parents[2]


def write(path, pixels, **options):
    Image.fromarray(np.asarray(pixels)).save(path, **options)
    return path


def test_the_sample_is_what_the_script_draws():
    with Image.open(pictures.SAMPLE) as sample:
        assert sample.mode == "RGB"
        kept = np.asarray(sample).astype(int)
    drawn = draw_sample.draw().astype(int)
    assert kept.shape == drawn.shape == (400, 640, 3)
    assert abs(kept - drawn).max() <= 1  # sines and roots may round otherwise on another machine
    assert pictures.SAMPLE.stat().st_size < 60_000


def test_load_scales_to_0_and_1_over_all_channels(tmp_path):
    pixels = np.array([[[10, 60, 110], [35, 85, 60]]], np.uint8)
    loaded = whole_pictures.load(write(tmp_path / "p.png", pixels))
    assert loaded.shape == (1, 1, 2, 3)
    assert loaded.dtype == np.float32
    np.testing.assert_allclose(loaded[0], (pixels - 10.0) / 100, rtol=1e-6)


def test_save_drops_negatives_then_scales_to_0_and_255(tmp_path):
    values = np.array([-7.0, 0.0, 1.0, 2.0, 3.9, 4.0], np.float32).reshape(1, 1, 2, 3)
    whole_pictures.save(tmp_path / "p.png", values)
    written = np.asarray(Image.open(tmp_path / "p.png"))
    assert written.shape == (1, 2, 3)
    assert written.reshape(-1).tolist() == [0, 0, 64, 128, 249, 255]


def test_save_starts_from_the_smallest_value_left_when_nothing_is_negative():
    values = np.array([2.0, 3.0, 4.0], np.float32).reshape(1, 1, 1, 3)
    assert whole_pictures.to_bytes(values).reshape(-1).tolist() == [0, 128, 255]


@given(hnp.arrays(np.uint8, st.tuples(st.integers(1, 9), st.integers(1, 9), st.just(3))))
def test_a_picture_comes_back_in_its_size_and_order(tmp_path_factory, pixels):
    path = tmp_path_factory.mktemp("p") / "p.png"
    loaded = whole_pictures.load(write(path, pixels))
    assert loaded.shape == (1, *pixels.shape)
    low, high = int(pixels.min()), int(pixels.max())
    if low == high:
        assert not loaded.any()
    else:
        assert loaded.min() == 0
        assert loaded.max() == 1
        np.testing.assert_allclose(loaded[0] * (high - low) + low, pixels, atol=1e-3)
    whole_pictures.save(path, loaded, overwrite=True)
    scale = 255 / max(high - low, 1)
    assert np.abs(np.asarray(Image.open(path)) - (pixels - float(low)) * scale).max() <= 0.501


@pytest.mark.parametrize("value", [0, 77, 255])
def test_a_single_value_becomes_0(tmp_path, value):
    loaded = whole_pictures.load(write(tmp_path / "p.png", np.full((3, 4, 3), value, np.uint8)))
    assert not loaded.any()
    assert not whole_pictures.to_bytes(np.full((1, 2, 2, 3), value, np.float32)).any()


def test_one_pixel(tmp_path):
    whole_pictures.save(tmp_path / "q.png", whole_pictures.load(write(tmp_path / "p.png", np.uint8([[[1, 2, 3]]]))))
    assert np.asarray(Image.open(tmp_path / "q.png")).tolist() == [[[0, 128, 255]]]


def test_greyscale_fills_three_channels(tmp_path):
    loaded = whole_pictures.load(write(tmp_path / "p.png", np.uint8([[0, 51, 255]])))
    np.testing.assert_allclose(loaded[0, 0], [[0] * 3, [0.2] * 3, [1] * 3], rtol=1e-6)


def test_sixteen_bits_are_not_cut_off(tmp_path):
    loaded = whole_pictures.load(write(tmp_path / "p.png", np.uint16([[0, 300, 30000, 60000]])))
    np.testing.assert_allclose(loaded[0, 0, :, 1], [0, 0.005, 0.5, 1], rtol=1e-6)


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "I", "I;16", "F"])
def test_a_part_is_that_part_of_the_whole(tmp_path, monkeypatch, mode):
    """Also where parts of one pixel or a few are converted at a time, and where the camera was turned."""
    random = np.random.default_rng(3)
    picture = Image.fromarray(random.integers(0, 256, (9, 13, 3), np.uint8))
    if mode in ("I", "I;16", "F"):
        picture = Image.fromarray(random.uniform(0, 60_000, (9, 13)).astype({"I": "i4", "I;16": "u2", "F": "f4"}[mode]))
    elif mode in ("LA", "PA", "RGBA"):
        picture.putalpha(Image.fromarray(random.integers(0, 256, (9, 13), np.uint8)))
    picture = picture if picture.mode == mode else picture.convert(mode)
    name = tmp_path / ("p.tiff" if mode in ("CMYK", "I", "F", "I;16") else "p.png")
    if mode in ("HSV", "PA", "YCbCr"):
        monkeypatch.setattr(pictures, "_decode", lambda _file: picture.copy())  # no file holds it
        name.touch()
    else:
        exif = Image.Exif()
        exif[0x0112] = 6
        picture.save(name, exif=exif)
    whole = whole_pictures.load(name)
    opened = pictures.Picture(name)
    assert (1, opened.height, opened.width, 3) == whole.shape
    monkeypatch.setattr(pictures, "_AT_ONCE", 7)
    again = pictures.Picture(name)
    assert (again._low, again._high) == (opened._low, opened._high)
    for rows, columns in ((slice(2, 6), slice(1, 8)), (slice(0, 9), slice(0, 9)), (slice(8, 9), slice(8, 9))):
        assert (again.pixels(rows, columns) == whole[:, rows, columns]).all()


def test_warnings_about_metadata_and_large_pictures_are_not_the_users(tmp_path, monkeypatch, recwarn):
    monkeypatch.setattr(pictures, "_AT_ONCE", 640 * 10)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 640 * 400 - 1)
    assert whole_pictures.load(pictures.SAMPLE).shape == (1, 400, 640, 3)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 320 * 400 - 1)
    with pytest.raises(pictures.PictureError, match=r"sample\.png: .*exceeds limit"):
        whole_pictures.load(pictures.SAMPLE)
    assert list(recwarn) == []


def test_floats_that_are_not_finite_are_refused(tmp_path):
    path = write(tmp_path / "p.tiff", np.float32([[0, np.nan]]))
    with pytest.raises(pictures.PictureError, match="not finite"):
        whole_pictures.load(path)


def test_transparency_is_laid_on_white(tmp_path):
    pixels = np.uint8([[[0, 0, 0, 255], [90, 10, 20, 0], [0, 0, 0, 51]]])
    loaded = whole_pictures.load(write(tmp_path / "p.png", pixels))
    np.testing.assert_allclose(loaded[0, 0], [[0] * 3, [1] * 3, [0.8] * 3], atol=1e-6)


def test_a_palette_with_a_transparent_colour(tmp_path):
    picture = Image.new("P", (3, 1))
    picture.putpalette([0, 0, 0, 255, 0, 0, 9, 9, 9])
    for x in range(3):
        picture.putpixel((x, 0), x)
    picture.save(tmp_path / "p.gif", transparency=2)
    np.testing.assert_allclose(
        whole_pictures.load(tmp_path / "p.gif")[0, 0], [[0, 0, 0], [1, 0, 0], [1, 1, 1]], atol=1e-6
    )


def test_the_cameras_orientation_is_applied(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # turn a quarter clockwise to see it upright
    loaded = whole_pictures.load(write(tmp_path / "p.png", np.uint8([[0, 255], [255, 255], [255, 255]]), exif=exif))
    assert loaded.shape == (1, 2, 3, 3)
    assert np.argwhere(loaded[0, :, :, 0] == 0).tolist() == [[0, 2]]


def png(width, height):
    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def whole_png():
    return pictures.SAMPLE.read_bytes()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("missing.png", None),
        ("empty.png", b""),
        ("text.png", b"this is no picture\n" * 50),
        ("no-width.png", png(0, 5)),
        ("no-height.png", png(5, 0)),
        ("no-size.ppm", b"P6 0 0 255\n"),
        ("short.png", whole_png()[:20_000]),
        ("damaged.png", whole_png()[:5000] + b"\0" * 50 + whole_png()[5050:]),
        ("huge.png", png(60_000, 60_000)),
    ],
)
def test_bad_files_are_one_line_that_names_the_file(tmp_path, name, content):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(pictures.PictureError) as caught:
        whole_pictures.load(path)
    assert str(path) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_folder_is_no_picture(tmp_path):
    with pytest.raises(pictures.PictureError, match="directory"):
        whole_pictures.load(tmp_path)


GREY = np.linspace(0, 1, 27, dtype=np.float32).reshape(1, 3, 3, 3)


@pytest.mark.parametrize(("ending", "format"), [("png", "PNG"), ("jpg", "JPEG"), ("JPEG", "JPEG"), ("bmp", "BMP")])
def test_the_ending_names_the_format(tmp_path, ending, format):
    whole_pictures.save(tmp_path / f"p.{ending}", GREY)
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
            pictures.Picture(damaged).close()
        except pictures.PictureError as error:
            messages.append(str(error))
    assert 100 < len(messages) < 600
    assert {message.startswith(f"{damaged}: ") for message in messages} == {True}
    assert {len(message.splitlines()) for message in messages} == {1}


def test_without_pillow_the_error_says_what_to_install():
    program = (
        "import sys; sys.modules['PIL'] = None\n"
        "from cudnnpy.cli import pictures\n"
        "try: pictures.Picture(pictures.SAMPLE)\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"pictures need Pillow: pip install {with_extra('images')}"
