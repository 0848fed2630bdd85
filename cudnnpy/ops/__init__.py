"""The operations other than convolutions. Their public names are in `cudnnpy`."""
