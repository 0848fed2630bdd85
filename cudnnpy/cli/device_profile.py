"""The command `cudnnpy device-profile`: write the device profile of a GPU of this machine."""

from __future__ import annotations

import argparse

from cudnnpy import raw
from cudnnpy.cli import arguments
from cudnnpy.cli.text_table import printed
from cudnnpy.tuning.profiles import device_profile
from cudnnpy.tuning.profiles.device_profile import DeviceProfile


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to a parser."""
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="the file to write, such as h200.json")
    parser.add_argument("--device", type=int, default=0, metavar="N", help="the ordinal of the GPU (default: 0)")
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    arguments.check_writable(options.output, overwrite=options.force)
    arguments.check_ordinal(options.device)
    device_profile.check_release()
    profile = DeviceProfile.of_device(options.device)
    assert profile.cudnn is not None
    profile.save(options.output)
    print(printed(f"{options.output}: {profile.description}, read by cuDNN {raw.version_text(profile.cudnn)}"))
    return 0
