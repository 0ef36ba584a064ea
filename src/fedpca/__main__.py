"""Run the command line with `python -m fedpca`."""

from fedpca.cli.app import app

app()
