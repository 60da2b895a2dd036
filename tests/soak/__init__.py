"""`./dev soak`, or `python -m tests.soak`: a broker under mixed load for minutes; its memory must stay flat.

    plan.py       how long each part takes, from the minutes that were asked for
    flows.py      steady load: the native load generator, one process for each flow
    actors.py     everything else that clients do: they come, go, take over, subscribe, break the rules, do not read
    measure.py    memory and descriptors of each process, from /proc
    run.py        the sequence: prelude, level before, load with samples, level after
    verdict.py    what must hold, and the robust slope
    chart.py      memory over time as an SVG
    __main__.py   the command: progress, files, exit code

Read them in this order. The suite runs the same in half a minute: test_soak.py.
"""
