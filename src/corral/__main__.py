"""``python -m corral``: the command line, where no script of that name was installed."""

from corral.cli.main import main

if __name__ == "__main__":
    main()
