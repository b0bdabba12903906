"""Datasets: made from templates by durable jobs, imported from files, kept as immutable versions with lineage."""
