"""Logistic regression on features, for the probe and for the head of the default learner."""

from __future__ import annotations

import torch

from graspcl.checks import Array
from graspcl.learner.moments import Rows

_BIAS = 5.0  # value of the feature whose weight is the bias; the search takes fewer steps than with 1


def logistic_rows(
    h: torch.Tensor, targets: torch.Tensor, classes: int, strength: float, start: Rows | None = None,
    tolerance: float = 1e-10, steps: int = 500, dtype: torch.dtype = torch.float32,
) -> Rows:  # fmt: skip
    """Return weights W [K, D] and biases b [K] of the logistic regression of `targets` [n] on features h [n, D].

    They minimise Σ cross-entropy + strength/2 · ‖W‖² by L-BFGS, for features that are centred and divided by their
    root mean square. The bias has no penalty.

    Args:
        h: features.
        targets: rows of the classes.
        classes: their number, K.
        strength: of the penalty.
        start: a solution to start from; by default zero.
        tolerance: the search ends when a step improves the loss by less, relatively.
        steps: of the search, at most.
        dtype: the precision in which losses are computed.
    """
    from scipy.optimize import minimize

    number, width = h.shape
    mean = h.mean(0)
    x = torch.full((number, width + 1), _BIAS, dtype=dtype)  # one copy, since features may be many
    torch.sub(h, mean, out=x[:, :width])
    scale = float(x[:, :width].square().mean().sqrt()) or 1.0
    x[:, :width] /= scale
    everyone = torch.arange(number)

    first = torch.zeros(classes, width + 1, dtype=torch.float64)
    if start is not None:
        weight, bias = start[0].double(), start[1].double()
        first = torch.cat([weight * scale, (bias + weight @ mean.double())[:, None] / _BIAS], 1)
    penalties = torch.full((width + 1,), strength / number, dtype=torch.float64)
    penalties[width] = 0.0

    def objective(values: Array) -> tuple[float, Array]:
        rows = torch.from_numpy(values).view(classes, width + 1)
        # Smaller probabilities than e^-60 make no difference, but numbers near zero make products slow.
        log_p = (x @ rows.to(dtype).T).log_softmax(1).clamp_(min=-60)
        pull = penalties * rows
        loss = float((pull * rows).sum()) / 2 - float(log_p[everyone, targets].double().mean())
        error = log_p.exp_()
        error[everyone, targets] -= 1
        gradient = (error.T @ x).double() / number + pull
        return loss, gradient.numpy().ravel()

    options = {"maxiter": steps, "maxfun": 2 * steps, "gtol": 1e-6, "ftol": tolerance}
    found = minimize(objective, first.numpy().ravel(), jac=True, method="L-BFGS-B", options=options).x
    rows = torch.from_numpy(found).view(classes, width + 1)
    weight = rows[:, :width] / scale
    return weight, _BIAS * rows[:, width] - weight @ mean.double()
