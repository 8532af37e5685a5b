"""Publishing: where a dataset's folder is taken, and how it gets there whole."""
