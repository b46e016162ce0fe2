"""`python -m fedlag` is the command line."""

from fedlag.cli import main

main(prog_name="fedlag")
