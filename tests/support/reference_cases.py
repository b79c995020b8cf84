"""The reference's operations out of place, for comparisons."""

import torch

from fatclip_ops.backends import reference


def clipped_rows(matrix, lam):
    twin = matrix.clone()
    reference.clip_rows_(twin, lam)
    return twin


def stepped_rows(x, grad, lr, lam):
    """The rows after one step, and the norms of the gradients."""
    twin = x.clone()
    return twin, reference.batched_clipped_sgd_(twin, grad, lr, lam)


def aggregated(matrix, lam, weights, reduce):
    """The aggregate in float64, the norms and the coefficients."""
    total = torch.empty(matrix.shape[1], dtype=torch.float64)
    seen = reference.aggregate(matrix, [total], lam, weights, reduce == "mean", False, False, 1.0)
    norms, coefs = torch.frombuffer(seen.norms_and_coefs, dtype=torch.float64).view(2, -1)
    return total, norms, coefs
