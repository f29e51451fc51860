"""`python -m peerbayes` is the command `peerbayes`."""

from peerbayes.cli.app import app

app(prog_name="peerbayes")
