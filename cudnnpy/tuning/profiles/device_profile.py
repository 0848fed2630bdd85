"""Device profiles: the properties of a GPU that cuDNN plans with, as JSON that is read from the GPU (since cuDNN 9.8).

A file has either the bare JSON of cuDNN, or the JSON of `DeviceProfile.save`, which also has the release of cuDNN that read the
GPU::

    {"format": 1, "cudnn": 92800, "cudnnpy": "0.1.0", "profile": {"deviceName": "NVIDIA H200", ...}}

A plan can be loaded only by the release of cuDNN that made it. Therefore, planning with another release than the file's is an
error.

The files in the folder device_profiles are found by their names, such as "h200", and serve every release that accepts them.
To add a GPU, add the file that `cudnnpy device-profile` writes on it. Newer releases need more properties than the release
that read the GPU. Two keys describe such additions: ``"set_by_hand"`` has the properties that were not read, and ``"releases"``
says which releases the profile was tried with.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from cudnnpy import raw
from cudnnpy._checks.option_values import MAX_INT64, error_repr, printable
from cudnnpy._checks.public_dir import PublicDir
from cudnnpy._checks.size_limits import MAX_PROFILE_BYTES
from cudnnpy._checks.suggestions import did_you_mean, with_suggestions
from cudnnpy._core.atomic_file import replace_file
from cudnnpy._core.untrusted_json import parse_json
from cudnnpy._planning.chooser import OtherGpu
from cudnnpy._planning.engines import Target, gpu_kind
from cudnnpy._version import __version__
from cudnnpy.backend import Descriptor
from cudnnpy.errors import LibraryNotFoundError, StatusError
from cudnnpy.handle import on_device

FORMAT = 1
FIRST_RELEASE = 90800  # of cuDNN with device profiles
_FOLDER = Path(__file__).with_name("device_profiles")


def _packaged_keys() -> dict[str, Any]:
    """Return the keys of cuDNN 9.28, each with a value of its type: those of a profile of the package, which has all.

    Releases add keys, and reject a profile without those that they need.
    """
    packaged = json.loads((_FOLDER / "h200.json").read_text())
    return {**packaged["set_by_hand"], **packaged["profile"]}


KEYS = _packaged_keys()
# The keys that plans, store keys and reports need.
_NEEDED = ("deviceName", "deviceVer", "multiProcessorCount", "totalGlobalMem")
_AGAIN = "read it again with `cudnnpy device-profile` on a machine with the GPU"


class ProfileError(ValueError):
    """A device profile cannot be used. The message is one line that names the file."""


@with_suggestions
@dataclass(frozen=True, repr=False)
class DeviceProfile(PublicDir, OtherGpu):
    """The properties of a GPU, with which cuDNN plans without the GPU (since cuDNN 9.8).

    `load` reads a profile of the package or of a file, and `of_device` reads a GPU of this machine. `Convolution.plan`,
    `Convolution.candidates`, `FusedConvolution.plan` and `Graph.plan` take it as their `device`.

    Examples
    --------
    >>> import cudnnpy
    >>> h200 = cudnnpy.DeviceProfile.load("h200")
    >>> h200.description
    'NVIDIA H200, compute capability 9.0, 132 multiprocessors'
    """

    text: str = field(repr=False)  #: the properties as cuDNN's JSON
    #: the release of cuDNN that must be loaded to plan for it, such as 92800; None for any that accepts it
    cudnn: int | None = None
    source: str = "text"  #: the name or the file that it was loaded from, or "GPU 0"
    set_by_hand: tuple[str, ...] = ()  #: the properties that were not read from a GPU, by cuDNN's names
    releases: str = ""  #: the releases of cuDNN that the profile was tried with, as text; "" if they are not known

    def __post_init__(self) -> None:
        """Raise TypeError for a name or a file in place of the properties, and ProfileError for odd properties."""
        if not isinstance(self.text, str) or not self.text.startswith("{"):
            raise TypeError(
                f"text must be the properties as cuDNN's JSON; got {error_repr(self.text)}. cudnnpy.DeviceProfile.load loads a "
                "profile by its name, such as 'h200', or from a file"
            )
        properties = _json(self.text, self.source)
        _check_values(properties, self.source)
        if absent := [*set(self.set_by_hand) - properties.keys()]:
            raise ProfileError(f"{self.source}: set_by_hand must be properties of the profile; got {absent}")

    def __repr__(self) -> str:
        return f"<DeviceProfile {self.source}: {self.description}>"

    @staticmethod
    def names() -> tuple[str, ...]:
        """Return the names of the profiles that come with the package."""
        return tuple(sorted(file.stem for file in _FOLDER.glob("*.json")))

    @classmethod
    def load(cls, name: str | os.PathLike[str]) -> Self:
        """Return the profile of a name in `names`, or of a file.

        Parameters
        ----------
        name : str or path-like
            A name, such as "h200", or a file that `save` or ``cudnnpy device-profile`` wrote.

        Raises
        ------
        ValueError
            It is neither a name nor a readable file, or the file is not a device profile.
        """
        source = os.fspath(name) or "''"
        if source in cls.names():
            return cls._parsed((_FOLDER / f"{source}.json").read_text(), source, is_packaged=True)
        try:
            with open(name, "rb") as file:
                content = file.read(MAX_PROFILE_BYTES + 1)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise ProfileError(
                f"{source}: cannot be read as a device profile: {why}; the package has {', '.join(cls.names())}, and "
                "`cudnnpy device-profile -o FILE` writes the profile of another GPU, where it is"
                f"{did_you_mean([known for known in cls.names() if known == source.lower()])}"
            ) from None
        if len(content) > MAX_PROFILE_BYTES:
            raise ProfileError(f"{source}: a device profile must have {MAX_PROFILE_BYTES} bytes at most; got more")
        try:
            return cls._parsed(content.decode(), source)
        except UnicodeDecodeError:
            raise ProfileError(f"{source}: a device profile must be UTF-8; got other bytes") from None

    @classmethod
    def of_device(cls, device: int = 0) -> Self:
        """Read the profile of a GPU of this machine.

        Parameters
        ----------
        device : int
            The ordinal of the GPU.

        Raises
        ------
        ValueError
            The loaded cuDNN is older than 9.8.
        StatusError
            cuDNN fails, for example without a driver.
        """
        with on_device(device):
            check_release()
            found = Descriptor(raw.CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, {raw.CUDNN_ATTR_DEVICEPROP_DEVICE_ID: device})
            text, source = str(found[raw.CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION]), f"GPU {device}"
        return cls(cls._parsed(text, source).text, raw.version(), source)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the profile to a file, which `load` reads. An existing file is replaced in one step.

        Raises
        ------
        OSError
            The file cannot be written.
        """
        replace_file(path, self.to_json().encode())

    def to_json(self) -> str:
        """Return the content of the file that `save` writes."""
        properties = self.properties
        plain = {
            "format": FORMAT,
            "cudnn": self.cudnn,
            "cudnnpy": __version__,
            **({"releases": self.releases} if self.releases else {}),
            **({"set_by_hand": {key: properties.pop(key) for key in self.set_by_hand}} if self.set_by_hand else {}),
            "profile": properties,
        }
        return json.dumps(plain, indent=1) + "\n"

    @property
    def properties(self) -> dict[str, Any]:
        """The properties by cuDNN's names."""
        found: dict[str, Any] = json.loads(self.text)
        return found

    @property
    def description(self) -> str:
        """The name, the compute capability and the number of multiprocessors of the GPU, as text."""
        return str(gpu_kind(Target(profile=self.text)))

    @property
    def memory(self) -> int:
        """The bytes of the GPU's memory, which limit the workspace."""
        return int(self.properties["totalGlobalMem"])

    @classmethod
    def _parsed(cls, text: str, source: str, *, is_packaged: bool = False) -> Self:
        """Return the profile of a text, bare or from `to_json`. `source` names it in errors, which are ProfileErrors."""
        found = _json(text, source)
        if not isinstance(found, dict):
            raise ProfileError(
                f"{source}: a device profile must be a JSON object; got a {type(found).__name__}; {_AGAIN}"
            )
        outer: dict[str, Any] = {}
        if "profile" in found:
            outer, found = found, found["profile"]
            if outer.get("format") != FORMAT:
                raise ProfileError(
                    f"{source}: a device profile must have format {FORMAT}, which this version reads; got "
                    f"{str(outer.get('format'))[:40]}; use the cudnnpy that wrote it, or {_AGAIN}"
                )
            if type(outer.get("cudnn", "")) not in (int, type(None)) or not isinstance(found, dict):
                raise ProfileError(f"{source}: a device profile must have the number of its cuDNN; got none; {_AGAIN}")
        by_hand, releases = outer.get("set_by_hand", {}), outer.get("releases", "")
        if not isinstance(by_hand, dict) or not isinstance(releases, str) or not releases.isprintable():
            raise ProfileError(f"{source}: set_by_hand must be an object, and releases a text; got others; {_AGAIN}")
        found = {**by_hand, **found}
        cudnn = None if is_packaged else outer.get("cudnn")
        return cls(json.dumps(found), cudnn, source, tuple(by_hand), releases)


def _json(text: str, source: str) -> Any:
    try:
        return parse_json(text)
    except ValueError as error:
        raise ProfileError(f"{source}: a device profile must be JSON; got {error}; {_AGAIN}") from None


def _check_values(found: dict[str, Any], source: str) -> None:
    """Raise ProfileError for values of other types than cuDNN writes, and for missing required keys."""
    if missing := [key for key in _NEEDED if key not in found]:
        unknown = sorted(found.keys() - KEYS.keys())
        raise ProfileError(f"{source}: {_keys_text(missing, unknown)}; {_AGAIN}")
    for key, value in found.items():
        wanted = KEYS.get(key, value)
        if isinstance(wanted, str):
            good = isinstance(value, str) and value.isprintable() and len(value) < 256  # cuDNN 9.28 copies longer ones
            expected = "a string of 255 characters at most, without control characters"
        elif isinstance(wanted, list):
            good = isinstance(value, list) and all(map(_is_number, value)) and len(value) == len(wanted)
            expected = f"a list of {len(wanted)} numbers"
        else:
            good, expected = _is_number(value), "an integer of 0 or more"
        if key in ("deviceVer", "multiProcessorCount", "totalGlobalMem"):
            good, expected = good and value > 0, "an integer of 1 or more"
        if key in KEYS and not good:
            raise ProfileError(f"{source}: {key} must be {expected}; got {str(value)[:60]!r}; {_AGAIN}")


def _is_number(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_INT64


def _keys_text(missing: list[str], unknown: list[str]) -> str:
    """Return the missing and the unknown keys of a profile as text."""
    also = f", and unknown {printable(', '.join(unknown))[:200]}" if unknown else ""
    return f"a device profile must have the keys {', '.join(missing)}; got none of these{also}"


def check_release() -> None:
    """Raise ProfileError if the loaded cuDNN has no device profiles, or if there is none; a driver is not needed."""
    try:
        release = raw.version()
    except LibraryNotFoundError as error:
        raise ProfileError(f"planning for a device profile needs cuDNN, and no driver: {error._of_cudnn}") from error
    if release < FIRST_RELEASE:
        raise ProfileError(
            f"cuDNN must be {raw.version_text(FIRST_RELEASE)} or newer for device profiles; got "
            f"{raw.version_text(release)}, which is loaded: install a newer nvidia-cudnn-cu12 or nvidia-cudnn-cu13"
        )


def target_of(profile: DeviceProfile) -> Target:
    """Return the target of a profile that the loaded cuDNN accepts.

    Raises ProfileError if cuDNN rejects the profile or is of another release than the profile, and StatusError if cuDNN cannot
    plan in this process, for example without a driver.
    """
    check_release()
    if profile.cudnn not in (None, raw.version()):
        theirs, ours = raw.version_text(profile.cudnn), raw.version_text(raw.version())
        raise ProfileError(
            f"{profile.source}: the profile's cuDNN must be {ours}, which is loaded here; got {theirs}, and a plan loads "
            f"only in the release of cuDNN that made it: install cuDNN {theirs} here, or {_AGAIN} and cuDNN {ours}"
        )
    target = Target(profile=profile.text)
    try:
        target.device()
    except StatusError as error:
        if int(error.status) != int(raw.CUDNN_STATUS_BAD_PARAM):
            raise
        raise ProfileError(f"{profile.source}: {_rejection(profile, error)}") from None
    return target


def _rejection(profile: DeviceProfile, error: StatusError) -> str:
    """Return why cuDNN rejects a profile. cuDNN names no missing key, so each absent one is tried."""
    given = profile.properties
    absent = {key: value for key, value in KEYS.items() if key not in given}
    unknown = sorted(given.keys() - KEYS.keys())
    ours = raw.version_text(raw.version())
    if not absent or not _is_accepted({**absent, **given}):
        return (
            f"a device profile must have the keys and values of cuDNN {ours}, which is loaded; got one that it rejects "
            f"({' '.join(error.detail.split())}); {_AGAIN} and cuDNN {ours}"
        )
    missing = [key for key in absent if not _is_accepted({k: v for k, v in {**absent, **given}.items() if k != key})]
    return (
        f"{_keys_text(missing, unknown)}; cuDNN {ours}, which is loaded, needs them: {_AGAIN} and cuDNN {ours}, or install "
        "the cuDNN that wrote the profile"
    )


def _is_accepted(properties: dict[str, Any]) -> bool:
    try:
        Target(profile=json.dumps(properties)).device()
    except StatusError:
        return False
    return True
