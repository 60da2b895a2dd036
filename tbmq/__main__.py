"""`python -m tbmq` is the `tbmq` command."""

from tbmq.cli import main

if __name__ == "__main__":
    main()
