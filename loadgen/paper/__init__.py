"""The reproduction of the SMetric paper as data: what is simulated, what the paper says, and how both are written down.

    settings.py   clusters, policies and rates, in full and quick
    grid.py       settings -> experiments: lists of scenarios, tuning first
    evidence.py   results by setting, provisioning, rate factor and policy
    findings.py   a row of the paper's tables: its value, ours, and how they compare
    colocated.py, large.py, disaggregated.py, workload.py    the findings of each part
    document.py   findings, tables and figures -> Markdown

Nothing here knows a result: every number and every judgement in the document is computed from stored simulations.
"""
