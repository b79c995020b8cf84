"""The ways to run one communication round: clients one after another, or stacked."""
