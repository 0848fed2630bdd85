"""Device profiles: their files, the checks of the loaded cuDNN, and the command that reads one from a GPU."""

from __future__ import annotations

import json

import pytest
from messages import says
from offline_profiles import needs_profiles, properties
from planning import DATA

from cudnnpy import raw
from cudnnpy.cli import arguments, command
from cudnnpy.tuning.profiles import device_profile
from cudnnpy.tuning.profiles.device_profile import DeviceProfile, ProfileError
from cudnnpy.tuning.profiles.planner_process import PlannerProcess

GOOD = json.loads((DATA / "h200-cudnn-9.28.json").read_text())
WRAPPED = {"format": 1, "cudnn": 92800, "cudnnpy": "0.1.0", "profile": GOOD}


def without(*keys):
    return {key: value for key, value in GOOD.items() if key not in keys}


@pytest.mark.parametrize("file", sorted(DATA.glob("h200-*.json")), ids=lambda file: file.stem)
def test_what_cudnn_wrote_is_read(file):
    found = DeviceProfile.load(file)
    assert found.properties == json.loads(file.read_text())
    assert found.cudnn is None
    assert found.description == "NVIDIA H200, compute capability 9.0, 132 multiprocessors"
    assert found.memory == 150109880320
    assert (found.set_by_hand, found.releases) == ((), "")


def test_a_written_profile_is_read_as_it_was(profile_file):
    made = DeviceProfile(json.dumps(GOOD), 92800, "GPU 0")
    again = DeviceProfile.load(profile_file(made.to_json()))
    assert (again.properties, again.cudnn) == (GOOD, 92800)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "must be JSON; got Expecting value"),
        ("{", "must be JSON; got "),
        ("[" * 100_000, "must be JSON; got "),
        ('{"deviceVer": NaN}', "must be JSON; got it has the number NaN"),
        ([1], "must be a JSON object; got a list"),
        (None, "must be a JSON object; got a NoneType"),
        (
            {},
            "must have the keys deviceName, deviceVer, multiProcessorCount, totalGlobalMem; got none of these; read it again",
        ),
        ({**without("deviceName"), "devicename": "H200"}, "keys deviceName; got none of these, and unknown devicename"),
        ({**WRAPPED, "format": 2}, "must have format 1, which this version reads; got 2"),
        ({**WRAPPED, "cudnn": "9.28"}, "must have the number of its cuDNN; got none"),
        ({**WRAPPED, "profile": []}, "must have the number of its cuDNN; got none"),
        ({**GOOD, "deviceVer": "900"}, "deviceVer must be an integer of 1 or more; got '900'"),
        ({**GOOD, "deviceVer": 0}, "deviceVer must be an integer of 1 or more; got '0'"),
        ({**GOOD, "multiProcessorCount": -1}, "multiProcessorCount must be an integer of 1 or more; got '-1'"),
        ({**GOOD, "warpSize": 1.5}, "warpSize must be an integer of 0 or more; got '1.5'"),
        ({**GOOD, "warpSize": True}, "warpSize must be an integer of 0 or more; got 'True'"),
        ({**GOOD, "l2CacheSize": 1 << 70}, "l2CacheSize must be an integer of 0 or more; got "),
        (
            {**GOOD, "deviceName": 5},
            "deviceName must be a string of 255 ... control characters; got '5'",
        ),
        ({**GOOD, "deviceName": "\ud800"}, "deviceName must be a string of 255 ... control characters; got '\\ud800'"),
        ({**GOOD, "deviceName": "x" * 256}, "deviceName must be a string of 255 characters at most, ...; got 'xxx"),
        ({**GOOD, "maxGridSize": [1]}, "maxGridSize must be a list of 3 numbers; got '[1]'"),
        ("x" * ((1 << 20) + 1), "must have 1048576 bytes at most; got more"),
    ],
)
def test_another_file_is_no_profile(profile_file, content, message):
    file = profile_file(content if content is not None else "null")
    with pytest.raises(ProfileError, match=says(message)) as caught:
        DeviceProfile.load(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert len(str(caught.value).splitlines()) == 1


def test_what_cannot_be_read_is_named(tmp_path):
    (tmp_path / "latin.json").write_bytes(b'{"deviceName": "\xe9"}')
    for name, message in (("no.json", "No such file"), (".", "Is a directory"), ("latin.json", "must be UTF-8")):
        with pytest.raises(ProfileError, match=message):
            DeviceProfile.load(tmp_path / name)
    with pytest.raises(ProfileError, match="cannot be read"):
        DeviceProfile.load("nul\0l")


# What the loaded cuDNN accepts


@needs_profiles
@pytest.mark.usefixtures("without_driver")
class TestAcceptance:
    def test_a_profile_with_its_keys(self, profile_file):
        PlannerProcess(DeviceProfile.load(profile_file())).close()
        PlannerProcess(DeviceProfile.load(profile_file({**properties(), "newKey": 1}))).close()  # of a newer cuDNN

    @pytest.mark.parametrize(
        "keys", [["regsPerBlock"], ["maxGridSize", "driverVer"], ["cudaDeviceId", "warpSize", "l2CacheSize"]]
    )
    def test_missing_keys_are_named_and_not_those_that_cudnn_does_without(self, profile_file, keys):
        given = {key: value for key, value in properties().items() if key not in [*keys, "smCountOrigin"]}
        with pytest.raises(ProfileError) as caught:
            PlannerProcess(DeviceProfile.load(profile_file({**given, "spelledOtherwise": 1})))
        listed, unknown = str(caught.value).partition("the keys ")[2].split("; got none of these, and unknown ")
        assert set(listed.split(", ")) == set(keys)
        assert unknown.startswith("spelledOtherwise; ")

    @pytest.mark.skipif(raw.version() != 92800, reason="what cuDNN 9.28.0 needs")
    def test_the_profile_of_an_older_cudnn_lacks_what_this_one_needs(self):
        with pytest.raises(
            ProfileError, match=says("must have the keys memoryBusWidth; got none of these; cuDNN 9.28.0, which")
        ):
            PlannerProcess(DeviceProfile.load(DATA / "h200-cudnn-9.19.json"))

    def test_a_profile_that_another_cudnn_read_is_refused(self, profile_file):
        theirs = raw.version() - 100
        file = profile_file({**WRAPPED, "cudnn": theirs, "profile": properties()})
        with pytest.raises(
            ProfileError, match=says(f"must be {raw.version_text(raw.version())}, which is loaded here; got ")
        ):
            PlannerProcess(DeviceProfile.load(file))
        ours = profile_file({**WRAPPED, "cudnn": raw.version(), "profile": properties()})
        PlannerProcess(DeviceProfile.load(ours)).close()


OLD = [
    "explain forward 8x16x8x8 16x16x3x3 --device {profile}",
    "plan {problems} --device {profile} -o {output}",
    "device-profile -o {output}",
]


@pytest.mark.parametrize("given", OLD, ids=lambda given: given.split()[0])
def test_before_cudnn_9_8_there_are_no_profiles(monkeypatch, capsys, profile_file, tmp_path, given):
    if raw.version() >= device_profile.FIRST_RELEASE:
        monkeypatch.setattr(raw, "version", lambda: 90700)
    monkeypatch.setattr(arguments, "check_ordinal", lambda device, advice="": None)
    problems, output = tmp_path / "p.txt", tmp_path / "out"
    problems.write_text("forward 8x16x8x8 16x16x3x3")
    words = given.format(profile=profile_file(GOOD), problems=problems, output=output).split()
    assert command.main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "cuDNN must be 9.8.0 or newer for device profiles; got " in line
    assert not output.exists()


# The command that reads one from a GPU


@pytest.fixture
def gpu(monkeypatch):
    """A machine whose GPU 1 has the profile of the tests."""
    asked = []

    def check_ordinal(device, advice=""):
        asked.append(device)

    monkeypatch.setattr(arguments, "check_ordinal", check_ordinal)
    monkeypatch.setattr(device_profile, "check_release", lambda: None)
    monkeypatch.setattr(
        DeviceProfile, "of_device", lambda device: DeviceProfile(json.dumps(GOOD), 92800, f"GPU {device}")
    )
    return asked


def test_the_command_writes_a_profile(gpu, tmp_path, capsys):
    file = tmp_path / "h200.json"
    assert command.main(["device-profile", "-o", str(file), "--device", "1"]) == 0
    assert gpu == [1]
    assert DeviceProfile.load(file).properties == GOOD
    assert capsys.readouterr().out == (
        f"{file}: NVIDIA H200, compute capability 9.0, 132 multiprocessors, read by cuDNN 9.28.0\n"
    )
    assert [one.name for one in tmp_path.iterdir()] == ["h200.json"]


def test_an_existing_file_stays_without_force(gpu, tmp_path, capsys):
    file = tmp_path / "h200.json"
    file.write_text("mine")
    assert command.main(["device-profile", "-o", str(file)]) == 2
    assert (gpu, file.read_text()) == ([], "mine")
    assert capsys.readouterr().err == f"cudnnpy device-profile: {file}: the file exists; --force overwrites it\n"
    assert command.main(["device-profile", "-o", str(file), "--force"]) == 0
    assert DeviceProfile.load(file).cudnn == 92800


@pytest.mark.skipif(raw.version() < device_profile.FIRST_RELEASE, reason="the error before cuDNN 9.8 is tested above")
def test_without_a_gpu_it_says_what_is_missing(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(arguments, "why_unavailable", lambda: "there is no GPU")
    assert command.main(["device-profile", "-o", str(tmp_path / "x.json")]) == 2
    assert capsys.readouterr().err == "cudnnpy device-profile: there is no GPU\n"
    assert list(tmp_path.iterdir()) == []
