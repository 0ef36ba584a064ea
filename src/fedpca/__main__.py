"""`python -m fedpca` is the command line."""

from fedpca.cli import app

app()
