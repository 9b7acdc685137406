"""`python -m weir`: the command line."""

from weir.service.cli import main

if __name__ == "__main__":
    main()
