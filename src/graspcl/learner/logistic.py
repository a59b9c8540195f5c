"""Logistic regression on features, for the probe and for the head of the default learner."""

from __future__ import annotations

import torch

from graspcl.checks import Array
from graspcl.learner.moments import Rows


def logistic_rows(
    h: torch.Tensor, targets: torch.Tensor, classes: int, strength: float, start: Rows | None = None,
    towards: Rows | None = None, tolerance: float = 1e-10, steps: int = 500,
) -> Rows:  # fmt: skip
    """Return weights W [K, D] and biases b [K] of the logistic regression of `targets` [n] on features h [n, D].

    They minimise Σ cross-entropy + strength/2 · ‖W‖² by L-BFGS, for features that are centred and divided by their
    root mean square. The bias has no penalty.

    Args:
        h: features.
        targets: rows of the classes.
        classes: their number, K.
        strength: of the penalty.
        start: a solution to start from; by default that of `towards`, or zero.
        towards: rows W₀, b₀ of another head. The penalty is strength/2 · (‖W - W₀‖² + ‖b - b₀‖²) in place of the one
            above: where samples say little, the head is the other one.
        tolerance: the search ends when a step improves the loss by less, relatively.
        steps: of the search, at most.
    """
    from scipy.optimize import minimize

    number, width = h.shape
    mean = h.mean(0)
    h = h - mean
    scale = float(h.square().mean().sqrt()) or 1.0
    h = h / scale
    everyone = torch.arange(number)

    def scaled(rows: Rows) -> torch.Tensor:
        weight, bias = rows[0].double(), rows[1].double()
        return torch.cat([weight * scale, (bias + weight @ mean.double())[:, None]], 1)

    centre = torch.zeros(classes, width + 1, dtype=torch.float64) if towards is None else scaled(towards)
    penalised = slice(0, width if towards is None else width + 1)

    def objective(values: Array) -> tuple[float, Array]:
        rows = torch.from_numpy(values).view(classes, width + 1)
        logits = torch.addmm(rows[:, width].float(), h, rows[:, :width].float().T)
        # Smaller probabilities than e^-60 make no difference, but numbers near zero make products slow.
        log_p = logits.log_softmax(1).clamp_(min=-60)
        away = (rows - centre)[:, penalised]
        penalty = strength / (2 * number) * float(away.square().sum())
        loss = penalty - float(log_p[everyone, targets].double().mean())
        error = log_p.exp_()
        error[everyone, targets] -= 1
        gradient = torch.empty_like(rows)
        gradient[:, :width] = (error.T @ h) / number
        gradient[:, width] = error.sum(0) / number
        gradient[:, penalised] += strength / number * away
        return loss, gradient.numpy().ravel()

    first = centre if start is None else scaled(start)
    options = {"maxiter": steps, "maxfun": 2 * steps, "gtol": 1e-6, "ftol": tolerance}
    found = minimize(objective, first.numpy().ravel(), jac=True, method="L-BFGS-B", options=options).x
    rows = torch.from_numpy(found).view(classes, width + 1)
    weight = rows[:, :width] / scale
    return weight, rows[:, width] - weight @ mean.double()
