"""Side-by-side timing against torch and cudnn-frontend on one GPU: `python -m tools.benchmark`."""
