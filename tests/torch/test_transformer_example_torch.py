"""docs/examples/transformer.py on the host: the reference's attention trains and decodes as PyTorch's does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformer


def test_it_trains_and_decodes_as_pytorch_does(capsys: pytest.CaptureFixture[str]) -> None:
    losses, right = transformer.main(["--device", "cpu", "--steps", "12", "--tokens", "14"])
    assert losses[-1] < 0.5 * losses[0]
    assert right > 1.5 / transformer.NUMBERS
    assert "14 tokens decoded from pages of 16 keys as by PyTorch" in capsys.readouterr().out


def test_other_results_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that forgets a token, and NaN."""
    torch.manual_seed(0)
    network, tokens = transformer.Transformer(), transformer.progressions(6, "cpu")

    class Forgetful(transformer.PagedCache):  # type: ignore[misc]
        def attend(self, memory: Any, k: Any, v: Any, qkv: Any) -> Any:
            return super().attend(memory, k, v, 10 * qkv if int(self.place) == 2 else qkv)

    with pytest.raises(AssertionError, match=r"^token 2 must be PyTorch's within"):
        transformer.Decoder(network, len(tokens), 7, "cpu", Forgetful).decode(tokens, 1, is_checked=True)
    with pytest.raises(AssertionError, match=r"^x must be PyTorch's within .*; got a difference of nan"):
        transformer.check("x", torch.tensor([float("nan")]), torch.ones(1))
