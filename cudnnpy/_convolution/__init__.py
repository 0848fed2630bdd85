"""A convolution as data: its options, sizes, specification and notation, without cuDNN."""
