"""The operations beside the convolutions. `cudnnpy` has their public names."""
