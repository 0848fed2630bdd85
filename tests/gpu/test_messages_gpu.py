"""cuDNN's messages in Python's logging while it works: cudnnpy.log_to."""

from __future__ import annotations

import logging

import numpy as np
from log_records import LogRecords

import cudnnpy
from cudnnpy.handle import Handle


def test_the_records_of_calls_on_a_handle() -> None:
    logger, kept = logging.Logger("calls"), LogRecords()
    logger.addHandler(kept)
    with cudnnpy.log_to(logger), Handle(0) as handle:
        assert handle.stream == 0
        address = handle.address
    functions = {vars(record)["cudnn_function"] for record in kept.records}
    assert {"cudnnGetStream", "cudnnDestroy"} <= functions
    # cuDNN may leave these out; what it states is right.
    assert {vars(record)["cudnn_handle"] for record in kept.records} <= {None, address}


def test_a_layer_works_as_without_a_log() -> None:
    """It is planned, and launched by cuDNN and directly, while each call of cuDNN is logged."""
    logger, kept = logging.Logger("layer"), LogRecords()
    logger.addHandler(kept)
    conv = cudnnpy.Convolution(padding=1, tf32=False)
    numbers = np.random.default_rng(0)
    x, w = numbers.random((2, 3, 8, 8), np.float32), numbers.random((4, 3, 3, 3), np.float32)
    on_device = cudnnpy.to_device(x), cudnnpy.to_device(w)
    wanted = cudnnpy.reference.Convolution(padding=1).forward(x, w)
    cudnnpy.clear_cache()
    with cudnnpy.log_to(logger):
        for _ in range(20):
            assert np.allclose(cudnnpy.to_numpy(conv.forward(*on_device)), wanted, atol=1e-4)
    assert "cudnnBackendExecute" in {vars(record)["cudnn_function"] for record in kept.records}
