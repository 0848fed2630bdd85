"""Settings of the process that a block replaces: those of cudnnpy.log_to and cudnnpy.torch.enable."""

from __future__ import annotations

import pytest

from cudnnpy._core.process_setting import ProcessSetting


class Applied(list[str]):
    """What was put into effect, in order. "bad" cannot be."""

    def __call__(self, value: str) -> None:
        if value == "bad":
            raise ValueError(value)
        self.append(value)


@pytest.fixture
def applied() -> Applied:
    return Applied()


def test_a_reset_restores_the_initial_setting_and_forgets_the_blocks(applied: Applied) -> None:
    setting = ProcessSetting("initial", applied)
    setting.reset()
    assert applied == []
    setting.set("other").__enter__()
    setting.reset()
    assert (setting.value, applied) == ("initial", ["other", "initial"])
    with setting.set("new"):
        pass
    assert applied == ["other", "initial", "new", "initial"]


def test_a_block_that_ends_before_a_later_one_changes_nothing(applied: Applied) -> None:
    """As the blocks of two threads may."""
    setting = ProcessSetting("none", applied)
    first, second = setting.set("first"), setting.set("second")
    with second:
        with first:
            pass
        assert setting.value == "second"
    assert setting.value == "none"
