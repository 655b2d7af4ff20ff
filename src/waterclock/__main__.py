"""`python -m waterclock`: the same as the `waterclock` command."""

from waterclock.cli import main

if __name__ == "__main__":
    main()
