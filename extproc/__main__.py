"""`python -m extproc`."""

from extproc.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
