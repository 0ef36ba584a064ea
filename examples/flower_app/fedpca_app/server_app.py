"""Fit the rows at all nodes, and write the model with its ledger."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedpca import FederatedPCA, Federation

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    sites, components = str(config["sites"]), str(config["components"])
    model = FederatedPCA(
        int(components) if components.isdigit() else components,
        solver=config["solver"],
        scale=config["scale"],
        random_state=config["seed"],
    )
    with Federation.flower_app(
        grid,
        sites=int(sites) if sites.isdigit() else sites.split(","),
        wait=float(config["wait"]),
        timeout=float(config["timeout"]),
    ) as fed:
        model.fit(fed)
    model.save(config["output"])
    run = model.run_
    print(f"{run.rounds} rounds with {', '.join(run.sites)}; wrote {config['output']}")
