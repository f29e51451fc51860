"""`python -m peerbayes` is the command `peerbayes`."""

from peerbayes.cli import app

app(prog_name="peerbayes")
