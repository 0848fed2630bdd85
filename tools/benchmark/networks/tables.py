"""Networks that torchvision does not have, written down from their public descriptions as lines of the list.

Each function gives the lines of one network (catalogue.py has their form), in the order in which it runs them; what
comes twice is kept once. 1-D networks that pad on one side only have the padding in x's size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tools.benchmark.networks.catalogue import Network, layer


def mobilenet_v1() -> Iterator[str]:
    """Thirteen pairs of a depthwise and a pointwise convolution."""
    yield "3x224x224 -> 32, 3x3, stride 2, padding 1"
    size = 112
    pairs = [(32, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1)]
    for channels, filters, stride in [*pairs, (512, 1024, 2), (1024, 1024, 1)]:
        yield f"{channels}x{size}x{size} -> {channels}, 3x3, stride {stride}, padding 1, groups {channels}"
        size //= stride
        yield f"{channels}x{size}x{size} -> {filters}, 1x1"


def xception() -> Iterator[str]:
    """Separable convolutions; 299x299."""
    yield "3x299x299 -> 32, 3x3, stride 2"
    yield "32x149x149 -> 64, 3x3"
    size = 147
    for channels, filters in ((64, 128), (128, 256), (256, 728)):
        for inside in (channels, filters):
            yield f"{inside}x{size}x{size} -> {inside}, 3x3, padding 1, groups {inside}"
            yield f"{inside}x{size}x{size} -> {filters}, 1x1"
        yield f"{channels}x{size}x{size} -> {filters}, 1x1, stride 2"
        size = (size + 1) // 2
    yield "728x19x19 -> 728, 3x3, padding 1, groups 728"
    yield "728x19x19 -> 728, 1x1"
    yield "728x19x19 -> 1024, 1x1"
    yield "728x19x19 -> 1024, 1x1, stride 2"
    for channels, filters in ((1024, 1536), (1536, 2048)):
        yield f"{channels}x10x10 -> {channels}, 3x3, padding 1, groups {channels}"
        yield f"{channels}x10x10 -> {filters}, 1x1"


def darknet53() -> Iterator[str]:
    """YOLOv3's backbone and its first head; 416x416."""
    yield "3x416x416 -> 32, 3x3, padding 1"
    size = 416
    for channels in (32, 64, 128, 256, 512):
        yield f"{channels}x{size}x{size} -> {2 * channels}, 3x3, stride 2, padding 1"
        size //= 2
        yield f"{2 * channels}x{size}x{size} -> {channels}, 1x1"
        yield f"{channels}x{size}x{size} -> {2 * channels}, 3x3, padding 1"
    yield "1024x13x13 -> 255, 1x1, bias"
    yield "512x13x13 -> 256, 1x1"
    yield "768x26x26 -> 256, 1x1"


def unet() -> Iterator[str]:
    """Ronneberger's: 572x572, no padding, transposed convolutions of 2x2."""
    size, channels = 572, 1
    for filters in (64, 128, 256, 512, 1024):
        yield f"{channels}x{size}x{size} -> {filters}, 3x3, bias"
        yield f"{filters}x{size - 2}x{size - 2} -> {filters}, 3x3, bias"
        channels, size = filters, (size - 4) // 2
    size = 28
    for filters in (512, 256, 128, 64):
        yield f"{2 * filters}x{size}x{size} -> {filters}, 2x2, stride 2, transposed, bias"
        size *= 2
        yield f"{2 * filters}x{size}x{size} -> {filters}, 3x3, bias"
        yield f"{filters}x{size - 2}x{size - 2} -> {filters}, 3x3, bias"
        size -= 4
    yield "64x388x388 -> 2, 1x1, bias"


def unet_padded() -> Iterator[str]:
    """The common variant on 256x256 that keeps sizes by padding."""
    size, channels = 256, 3
    for filters in (64, 128, 256, 512, 1024):
        yield f"{channels}x{size}x{size} -> {filters}, 3x3, padding 1"
        yield f"{filters}x{size}x{size} -> {filters}, 3x3, padding 1"
        channels, size = filters, size // 2
    size = 16
    for filters in (512, 256, 128, 64):
        yield f"{2 * filters}x{size}x{size} -> {filters}, 2x2, stride 2, transposed, bias"
        size *= 2
        yield f"{2 * filters}x{size}x{size} -> {filters}, 3x3, padding 1"
    yield "64x256x256 -> 2, 1x1, bias"


def unet_3d() -> Iterator[str]:
    """Cicek's 3-D U-Net: 132x132x116, no padding."""
    wide, deep, channels = 132, 116, 3
    for filters in (32, 64, 128, 256):
        for more in (filters, 2 * filters):
            yield f"{channels}x{wide}x{wide}x{deep} -> {more}, 3x3x3, bias"
            channels, wide, deep = more, wide - 2, deep - 2
        wide, deep = wide // 2, deep // 2
    wide, deep = 9, 7
    for filters in (256, 128, 64):
        yield f"{2 * filters}x{wide}x{wide}x{deep} -> {2 * filters}, 2x2x2, stride 2, transposed, bias"
        wide, deep, channels = 2 * wide, 2 * deep, 3 * filters
        for _ in range(2):
            yield f"{channels}x{wide}x{wide}x{deep} -> {filters}, 3x3x3, bias"
            channels, wide, deep = filters, wide - 2, deep - 2
    yield "64x44x44x28 -> 3, 1x1x1, bias"


def c3d() -> Iterator[str]:
    """Tran's C3D on 16 frames of 112x112."""
    yield "3x16x112x112 -> 64, 3x3x3, padding 1, bias"
    yield "64x16x56x56 -> 128, 3x3x3, padding 1, bias"
    yield "128x8x28x28 -> 256, 3x3x3, padding 1, bias"
    yield "256x8x28x28 -> 256, 3x3x3, padding 1, bias"
    yield "256x4x14x14 -> 512, 3x3x3, padding 1, bias"
    yield "512x4x14x14 -> 512, 3x3x3, padding 1, bias"
    yield "512x2x7x7 -> 512, 3x3x3, padding 1, bias"


def x3d_m() -> Iterator[str]:
    """X3D-M on 16 frames of 224x224: depthwise convolutions of 3x3x3."""
    yield "3x16x224x224 -> 24, 1x3x3, stride 1x2x2, padding 0x1x1"
    yield "24x16x112x112 -> 24, 5x1x1, padding 2x0x0, groups 24"
    size, channels = 112, 24
    for filters in (24, 48, 96, 192):
        inside = filters * 9 // 4
        yield f"{channels}x16x{size}x{size} -> {inside}, 1x1x1"
        yield f"{inside}x16x{size}x{size} -> {inside}, 3x3x3, stride 1x2x2, padding 1, groups {inside}"
        yield f"{channels}x16x{size}x{size} -> {filters}, 1x1x1, stride 1x2x2"
        size //= 2
        yield f"{inside}x16x{size}x{size} -> {filters}, 1x1x1"
        yield f"{filters}x16x{size}x{size} -> {inside}, 1x1x1"
        yield f"{inside}x16x{size}x{size} -> {inside}, 3x3x3, padding 1, groups {inside}"
        channels = filters
    yield "192x16x7x7 -> 432, 1x1x1"


def stable_diffusion_unet() -> Iterator[str]:
    """Version 1's U-Net on a latent picture of 64x64."""
    yield "4x64x64 -> 320, 3x3, padding 1, bias"
    levels = ((320, 64), (640, 32), (1280, 16), (1280, 8))
    before = 320
    for channels, size in levels:
        if before != channels:
            yield f"{before}x{size}x{size} -> {channels}, 3x3, padding 1, bias"
            yield f"{before}x{size}x{size} -> {channels}, 1x1, bias"
        yield f"{channels}x{size}x{size} -> {channels}, 3x3, padding 1, bias"
        if size > 8:
            yield f"{channels}x{size}x{size} -> {channels}, 1x1, bias"  # around each transformer
            yield f"{channels}x{size}x{size} -> {channels}, 3x3, stride 2, padding 1, bias"
        before = channels
    ups = ((8, 1280, (2560,)), (16, 1280, (2560, 1920)), (32, 640, (1920, 1280, 960)), (64, 320, (960, 640)))
    for size, channels, joined in ups:
        for wide in joined:
            yield f"{wide}x{size}x{size} -> {channels}, 3x3, padding 1, bias"
            yield f"{wide}x{size}x{size} -> {channels}, 1x1, bias"
        if size < 64:
            yield f"{channels}x{2 * size}x{2 * size} -> {channels}, 3x3, padding 1, bias"
    yield "320x64x64 -> 4, 3x3, padding 1, bias"


def stable_diffusion_decoder() -> Iterator[str]:
    """From a latent picture of 64x64 to 512x512."""
    yield "4x64x64 -> 4, 1x1, bias"
    yield "4x64x64 -> 512, 3x3, padding 1, bias"
    size, before = 64, 512
    for channels in (512, 512, 256, 128):
        if before != channels:
            yield f"{before}x{size}x{size} -> {channels}, 3x3, padding 1, bias"
            yield f"{before}x{size}x{size} -> {channels}, 1x1, bias"
        yield f"{channels}x{size}x{size} -> {channels}, 3x3, padding 1, bias"
        if size < 512:
            size *= 2
            yield f"{channels}x{size}x{size} -> {channels}, 3x3, padding 1, bias"
        before = channels
    yield "128x512x512 -> 3, 3x3, padding 1, bias"


def dcgan() -> Iterator[str]:
    """Generator and discriminator for 64x64."""
    yield "100x1x1 -> 512, 4x4, transposed"
    size = 4
    for channels, filters in ((512, 256), (256, 128), (128, 64), (64, 3)):
        yield f"{channels}x{size}x{size} -> {filters}, 4x4, stride 2, padding 1, transposed"
        size *= 2
    for channels, filters in ((3, 64), (64, 128), (128, 256), (256, 512)):
        yield f"{channels}x{size}x{size} -> {filters}, 4x4, stride 2, padding 1"
        size //= 2
    yield "512x4x4 -> 1, 4x4"


def pix2pix() -> Iterator[str]:
    """A U-Net of strided convolutions of 4x4 and their transposes, 256x256."""
    size = 256
    for channels, filters in ((3, 64), (64, 128), (128, 256), (256, 512), *([(512, 512)] * 4)):
        yield f"{channels}x{size}x{size} -> {filters}, 4x4, stride 2, padding 1, bias"
        size //= 2
    downs = ((512, 512), *([(1024, 512)] * 3), (1024, 256), (512, 128), (256, 64), (128, 3))
    for channels, filters in downs:
        yield f"{channels}x{size}x{size} -> {filters}, 4x4, stride 2, padding 1, transposed, bias"
        size *= 2


def cyclegan() -> Iterator[str]:
    """The generator of nine residual blocks: transposes with an output padding."""
    yield "3x262x262 -> 64, 7x7, bias"
    yield "64x256x256 -> 128, 3x3, stride 2, padding 1, bias"
    yield "128x128x128 -> 256, 3x3, stride 2, padding 1, bias"
    yield "256x66x66 -> 256, 3x3, bias"
    yield "256x64x64 -> 128, 3x3, stride 2, padding 1, transposed, output padding 1, bias"
    yield "128x128x128 -> 64, 3x3, stride 2, padding 1, transposed, output padding 1, bias"
    yield "64x262x262 -> 3, 7x7, bias"


def edsr() -> Iterator[str]:
    """Super-resolution by 2: patches of 48x48, 256 channels."""
    yield "3x48x48 -> 256, 3x3, padding 1, bias"
    yield "256x48x48 -> 256, 3x3, padding 1, bias"
    yield "256x48x48 -> 1024, 3x3, padding 1, bias"
    yield "256x96x96 -> 3, 3x3, padding 1, bias"


def fsrcnn() -> Iterator[str]:
    """Super-resolution by 3, with a transposed convolution of 9x9 at its end."""
    yield "1x96x96 -> 56, 5x5, padding 2, bias"
    yield "56x96x96 -> 12, 1x1, bias"
    yield "12x96x96 -> 12, 3x3, padding 1, bias"
    yield "12x96x96 -> 56, 1x1, bias"
    yield "56x96x96 -> 1, 9x9, stride 3, padding 4, transposed, output padding 2, bias"


def whisper() -> Iterator[str]:
    """The two convolutions before the encoder, of the tiny, small and large-v3 models."""
    for mel, state in ((80, 384), (80, 768), (128, 1280)):
        yield f"{mel}x3000 -> {state}, 3, padding 1, bias"
        yield f"{state}x3000 -> {state}, 3, stride 2, padding 1, bias"


def wavenet() -> Iterator[str]:
    """Dilations of 1 to 512 over a second of 16 kHz; x has the causal padding."""
    yield "256x16000 -> 64, 1, bias"
    for power in range(10):
        yield f"64x{16000 + 2**power} -> 128, 2, dilation {2**power}, bias"
    yield "64x16000 -> 64, 1, bias"
    yield "64x16000 -> 256, 1, bias"
    yield "256x16000 -> 256, 1, bias"


def wav2vec2() -> Iterator[str]:
    """The feature encoder on a second of 16 kHz, and the convolution that tells positions."""
    yield "1x16000 -> 512, 10, stride 5"
    length = 3199
    for kernel in (3, 3, 3, 3, 2, 2):
        yield f"512x{length} -> 512, {kernel}, stride 2"
        length = (length - kernel) // 2 + 1
    yield f"768x{length} -> 768, 128, padding 64, groups 16, bias"


def hifi_gan() -> Iterator[str]:
    """Version 1's generator on 32 frames: transposes, and blocks of dilated convolutions."""
    yield "80x32 -> 512, 7, padding 3, bias"
    length, channels = 32, 512
    for kernel, stride in ((16, 8), (16, 8), (4, 2), (4, 2)):
        padding = (kernel - stride) // 2
        yield f"{channels}x{length} -> {channels // 2}, {kernel}, stride {stride}, padding {padding}, transposed, bias"
        length, channels = length * stride, channels // 2
        for size in (3, 7, 11):
            for dilation in (1, 3, 5):
                padding = dilation * (size - 1) // 2
                yield f"{channels}x{length} -> {channels}, {size}, padding {padding}, dilation {dilation}, bias"
    yield "32x8192 -> 1, 7, padding 3, bias"


def conv_tasnet() -> Iterator[str]:
    """Depthwise 1-D convolutions whose dilation doubles, between pointwise ones."""
    yield "1x32000 -> 512, 16, stride 8"
    yield "512x3999 -> 128, 1, bias"
    yield "128x3999 -> 512, 1, bias"
    for power in range(8):
        yield f"512x3999 -> 512, 3, padding {2**power}, dilation {2**power}, groups 512, bias"
    yield "512x3999 -> 128, 1, bias"
    yield "128x3999 -> 1024, 1, bias"
    yield "512x3999 -> 1, 16, stride 8, transposed"


def conformer() -> Iterator[str]:
    """The large model's subsampling and its convolution module."""
    yield "1x1000x80 -> 512, 3x3, stride 2, bias"
    yield "512x499x39 -> 512, 3x3, stride 2, bias"
    yield "512x249 -> 1024, 1, bias"
    yield "512x249 -> 512, 31, padding 15, groups 512, bias"
    yield "512x249 -> 512, 1, bias"


# what each is from, and the batch that it is trained with here
TABLES: dict[Callable[[], Iterator[str]], tuple[int, str]] = {
    mobilenet_v1: (64, "arXiv 1704.04861"),
    xception: (32, "arXiv 1610.02357"),
    darknet53: (16, "arXiv 1804.02767"),
    unet: (4, "arXiv 1505.04597"),
    unet_padded: (16, "arXiv 1505.04597, with padding"),
    unet_3d: (2, "arXiv 1606.06650"),
    c3d: (16, "arXiv 1412.0767"),
    x3d_m: (8, "arXiv 2004.04730"),
    stable_diffusion_unet: (8, "arXiv 2112.10752, version 1"),
    stable_diffusion_decoder: (2, "arXiv 2112.10752, version 1"),
    dcgan: (128, "arXiv 1511.06434"),
    pix2pix: (16, "arXiv 1611.07004"),
    cyclegan: (4, "arXiv 1703.10593"),
    edsr: (16, "arXiv 1707.02921"),
    fsrcnn: (16, "arXiv 1608.00367"),
    whisper: (16, "arXiv 2212.04356"),
    wavenet: (8, "arXiv 1609.03499"),
    wav2vec2: (16, "arXiv 2006.11477"),
    hifi_gan: (16, "arXiv 2010.05646"),
    conv_tasnet: (8, "arXiv 1809.07454"),
    conformer: (16, "arXiv 2005.08100"),
}


def networks() -> list[Network]:
    """All of them."""
    return [
        Network(lines.__name__, batch, source, tuple(dict.fromkeys(map(layer, lines()))))
        for lines, (batch, source) in TABLES.items()
    ]
