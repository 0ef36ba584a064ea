"""Answer questions about the rows at a node, as its configuration allows."""

from fedpca.engines.flower_app.client import client_app
from fedpca.solvers.catalogue import load_added_solvers

load_added_solvers()  # so that the site also knows the questions of installed packages
app = client_app()
