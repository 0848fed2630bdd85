"""Generates cudnnpy.raw from cuDNN's headers; README.md has the steps for a new release."""
