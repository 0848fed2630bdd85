"""The operations beside the convolutions over families of shapes: which there are, their rows, and the page of all rows."""
