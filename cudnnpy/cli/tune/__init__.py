"""The command `cudnnpy tune`: measure problems ahead, on the GPUs of this machine or of a Dask cluster."""
