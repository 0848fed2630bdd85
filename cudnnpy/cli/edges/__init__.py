"""The command `cudnnpy edges`: the edge detector."""
