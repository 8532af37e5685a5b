"""Datasets: many rollouts as Parquet files with a manifest, written and checked alone."""
