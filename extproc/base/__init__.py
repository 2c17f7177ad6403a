"""What every room may import: the product's nouns, errors, header names, metrics, block keys, DNS. Imports none."""
