"""The layers that users call on arrays, one file each; lowerings/ and arguments/ have what they share."""
