"""The descriptors that need a device."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cuda.core import Device

from cudnnpy import raw
from cudnnpy.descriptors import DropoutDescriptor, RNNDataDescriptor, RNNDescriptor, TensorDescriptor
from cudnnpy.handle import Handle


@pytest.fixture
def handle() -> Iterator[Handle]:
    Device(0).set_current()
    with Handle() as made:
        yield made


def test_dropout_keeps_its_states_where_it_was_told(handle: Handle) -> None:
    size = DropoutDescriptor.needed_states_size(handle)
    assert size > 0
    memory = Device(0).allocate(size, stream=Device(0).default_stream)
    address = int(memory.handle)
    with DropoutDescriptor(handle, 0.25, states=address, states_size=size, seed=7) as dropout:
        read = dropout.get("cudnnGetDropoutDescriptor", handle)
        assert read == {"dropout": 0.25, "states": address, "seed": 7}
        assert repr(dropout) == f"<DropoutDescriptor dropout=0.25, states={address}, seed=7>"
        with DropoutDescriptor(handle, 0.5, states=address, states_size=size, seed=7, restore=True) as restored:
            assert restored.get("cudnnGetDropoutDescriptor", handle)["dropout"] == 0.5
    Device(0).sync()
    memory.close()


def test_a_recurrent_network_tells_its_sizes(handle: Handle) -> None:
    with DropoutDescriptor() as dropout, RNNDescriptor() as rnn, RNNDataDescriptor() as data:
        rnn.set(
            "cudnnSetRNNDescriptor_v8",
            *("standard", "lstm", "double_bias", "unidirectional", "linear_input", "float32", "float32", "fma_math"),
            *(8, 16, 16, 1, dropout, 0),
        )
        # an LSTM has four gates, each with 16 x 8 and 16 x 16 weights and two biases of 16
        assert rnn.get("cudnnGetRNNWeightSpaceSize", handle)["weightSpaceSize"] >= 4 * (16 * 8 + 16 * 16 + 32) * 4
        data.set("cudnnSetRNNDataDescriptor", "float32", "seq_major_unpacked", 5, 3, 8, (5, 4, 2), None)
        sizes = rnn.get("cudnnGetRNNTempSpaceSizes", handle, "training", data)
        assert sizes["reserveSpaceSize"] > 0


def test_a_tensor_transformation(handle: Handle) -> None:
    from cudnnpy.descriptors import TensorTransformDescriptor

    with TensorTransformDescriptor() as made, TensorDescriptor((1, 4, 6, 6)) as x, TensorDescriptor((1, 1, 1, 1)) as y:
        made.set("cudnnSetTensorTransformDescriptor", 4, "nhwc", (0, 0, 1, 1), (0, 4, 1, 1), None, "fold")
        read = made.get("cudnnGetTensorTransformDescriptor", 4)
        assert (read["padBeforeA"], read["padAfterA"]) == ((0, 0, 1, 1), (0, 4, 1, 1))
        assert made.get("cudnnInitTransformDest", x, y)["destSizeInBytes"] == 1 * 8 * 8 * 8 * 4
        assert y.shape == (1, 8, 8, 8)
        assert read["destFormat"] == raw.CUDNN_TENSOR_NHWC
