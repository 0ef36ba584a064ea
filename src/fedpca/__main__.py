"""Run the command line by `python -m fedpca`."""

from fedpca.cli.app import app

app()
