"""The command `cudnnpy device-profile`: writes the profile of a GPU of this machine."""

from __future__ import annotations

import argparse

from cudnnpy.cli.text_table import printed, say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to a parser."""
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="the file to write, such as h200.json")
    parser.add_argument("--device", type=int, default=0, metavar="N", help="the ordinal of the GPU (default: 0)")
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    from cudnnpy._planning import device_profile
    from cudnnpy.availability import UnavailableError
    from cudnnpy.cli import devices, output_files
    from cudnnpy.errors import CudnnError, LibraryError
    from cudnnpy.handle import on_device

    try:
        output_files.check_writable(options.output, overwrite=options.force)
        device_profile.check_release()
        devices.check_ordinal(options.device)
        with on_device(options.device):
            found = device_profile.of_device(options.device)
        output_files.write(options.output, device_profile.written(found))
    except (output_files.OutputError, device_profile.ProfileError, UnavailableError, LibraryError) as error:
        return say("cudnnpy device-profile", error, 2)
    except (CudnnError, MemoryError, RuntimeError) as error:  # RuntimeError: an error of the CUDA driver
        return say("cudnnpy device-profile", error, 1)
    print(printed(f"{options.output}: {found.description}, read by {found.release}"))
    return 0
