"""A run as rows, and the measures that are taken of rows."""
