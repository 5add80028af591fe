"""`python -m fairlead`: the same command without the console script."""

from fairlead.cli.main import run

if __name__ == "__main__":
    run()
