"""The models of the experiments: each builds a module and knows its gradients for many stacked clients."""
