"""Whole blocks that approximate a function: the paper's construction and smaller ones."""
