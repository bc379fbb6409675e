"""`python -m everstep` is the `everstep` command."""

from everstep.cli.main import main

if __name__ == "__main__":
    main()
