"""Deciding which made rows are kept. Row filters look at one row; set filters at a row among those before it.

Pure functions of data: no SQL, no model calls. Every refusal is a reason code and, where it helps, a detail.
"""
