"""Literal float64 twin of YellowFin: averages written as sums, the cubic solved by bisection."""

import math


def average(values, beta):
    """<x>: exponentially weighted, corrected for its start at zero."""
    n = len(values)
    weights = [(1 - beta) * beta ** (n - 1 - i) for i in range(n)]
    return math.fsum(w * x for w, x in zip(weights, values, strict=True)) / (1 - beta**n)


def raw_average(values, beta):
    n = len(values)
    return math.fsum((1 - beta) * beta ** (n - 1 - i) * x for i, x in enumerate(values))


def root(distance, variance, h_min):
    """Bisection for the zero of the derivative of x^2 D^2 + (1 - x)^4 C / h_min^2 in [0, 1]."""
    low, high = 0.0, 1.0
    for _ in range(200):
        x = (low + high) / 2
        if 2 * x * distance**2 - 4 * (1 - x) ** 3 * variance / h_min**2 < 0:
            low = x
        else:
            high = x
    return (low + high) / 2


class YellowFinTwin:
    """`vectors` are parameter groups; `groups` their numbers lr, momentum, lr_factor, momentum_factor, weight_decay."""

    def __init__(self, vectors, groups, *, beta=0.999, window=20, clip_norm=None, adaptive_clip=True, slow_start=True):
        self.x = [[float(x) for x in vector] for vector in vectors]
        self.groups = [
            {"lr": 1e-4, "momentum": 0.0, "lr_factor": 1.0, "momentum_factor": 1.0, "weight_decay": 0.0, **group}
            for group in groups
        ]
        self.beta, self.window, self.clip_norm = beta, window, clip_norm
        self.adaptive_clip, self.slow_start = adaptive_clip, slow_start
        self.previous = [list(vector) for vector in self.x]
        self.gradients = []  # flat, as the statistics saw them
        self.h = []
        self.log_low = []
        self.high = []
        self.ratio = []

    def step(self, gradients, f=(1.0, 1.0)):
        t = len(self.h)
        g = [
            [float(gi) + group["weight_decay"] * xi for gi, xi in zip(gradient, x, strict=True)]
            for gradient, x, group in zip(gradients, self.x, self.groups, strict=True)
        ]
        norm = math.sqrt(sum(gi**2 for vector in g for gi in vector))
        limit = math.inf if self.clip_norm is None else self.clip_norm
        if self.adaptive_clip and t >= 2:
            limit = min(limit, 10 * math.sqrt(average(self.high, self.beta)))
        if norm > limit:
            g = [[gi * limit / norm for gi in vector] for vector in g]
            norm = limit
        self.gradients.append([gi for vector in g for gi in vector])
        self.h.append(norm**2)
        self.log_low.append(math.log(min(self.h[-self.window :])))
        self.high.append(max(self.h[-self.window :]))
        norms = [math.sqrt(h) for h in self.h]
        self.ratio.append(raw_average(norms, self.beta) / raw_average(self.h, self.beta))
        shrink = 1.0
        alpha = mu = None
        if t > 0:
            mean = [average([step[i] for step in self.gradients], self.beta) for i in range(len(self.gradients[0]))]
            variance = average(self.h, self.beta) - sum(mi**2 for mi in mean)
            h_min, h_max = math.exp(average(self.log_low, self.beta)), average(self.high, self.beta)
            x = root(average(self.ratio, self.beta), variance, h_min)
            spread = math.sqrt(h_max / h_min)
            mu = max(x**2, ((spread - 1) / (spread + 1)) ** 2)
            alpha = (1 - math.sqrt(mu)) ** 2 / h_min
            if self.slow_start:
                alpha *= min(1.0, (t + 1) / (10 * self.window))
            if self.adaptive_clip:
                shrink = min(1.0, math.sqrt(h_max) / norm)
        for k, group in enumerate(self.groups):
            rate = group["lr_factor"] * f[k] * (group["lr"] if alpha is None else alpha)
            momentum = group["momentum_factor"] * (group["momentum"] if mu is None else mu)
            moved = [
                x + momentum * (x - before) - rate * shrink * gi
                for x, before, gi in zip(self.x[k], self.previous[k], g[k], strict=True)
            ]
            self.previous[k], self.x[k] = self.x[k], moved
        return self.x
