"""Soak: jobs that train while chance does to them everything that the tests know how to do, at any time.

    python -m soak --faults 1000 --seed 1          # `make soak FAULTS=1000 SEED=1`

schedule.py decides by a seed what happens, faults.py does it to a running job and undoes it, verdict.py looks at what
is left, box.py is the machine in the machine where all of it happens."""
