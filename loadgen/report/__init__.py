"""What runs and sweeps say, as tables, figures and one HTML page. Measures nothing itself (`loadgen.measures` does).

`reading` reads, `material` groups, `tables` and `figures` show, `page` puts them together, `output` writes them. Only
`figures` knows matplotlib.
"""
