"""docs/examples/transformer.py on a GPU: each step of training and each token as PyTorch's."""

from __future__ import annotations

import pytest
import transformer


def test_it_trains_and_decodes_as_pytorch_does(capsys: pytest.CaptureFixture[str]) -> None:
    losses, right = transformer.main(["--device", "cuda"])
    assert losses[-1] < 0.5
    assert right > 0.8
    assert capsys.readouterr().out.count("ms for a token") == 2
