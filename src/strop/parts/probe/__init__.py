"""Measures columns for the parts after it, or numbers for the report."""
