"""`python -m weir`: the command line."""

from weir.cli.main import main

if __name__ == "__main__":
    main()
