"""What runs and sweeps say, as tables, figures and one HTML page. `loadgen.results.measures` measures.

`reading` reads, `material` groups, `tables` and `figures` show, `page` puts them together, `output` writes them. Only
`figures` knows matplotlib.
"""
