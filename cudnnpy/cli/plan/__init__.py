"""The commands `cudnnpy plan` and `cudnnpy device-profile`: plan without the GPU."""
