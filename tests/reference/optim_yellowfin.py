"""Literal float64 twin of YellowFin: averages written as sums, the cubic solved by bisection."""

import math


def average(values, beta):
    """<x>: exponentially weighted, corrected for its start at zero."""
    return raw_average(values, beta) / (1 - beta ** len(values))


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

    def __init__(
        self,
        vectors,
        groups,
        *,
        beta=0.999,
        window=20,
        clip_norm=None,
        adaptive_clip=True,
        stat_protect_fac=100.0,
        catastrophic_move_thresh=100.0,
        h_max_log_smooth=True,
        h_min_log_smooth=True,
        slow_start=True,
        rate_in_velocity=False,
        eps=1e-6,
    ):
        self.x = [[float(x) for x in vector] for vector in vectors]
        self.groups = [
            {"lr": 1e-4, "momentum": 0.0, "lr_factor": 1.0, "momentum_factor": 1.0, "weight_decay": 0.0, **group}
            for group in groups
        ]
        self.beta, self.window, self.clip_norm = beta, window, clip_norm
        self.adaptive_clip, self.slow_start = adaptive_clip, slow_start
        self.stat_protect_fac, self.catastrophic_move_thresh = stat_protect_fac, catastrophic_move_thresh
        self.h_max_log_smooth, self.h_min_log_smooth = h_max_log_smooth, h_min_log_smooth
        self.rate_in_velocity, self.eps = rate_in_velocity, eps
        self.velocity = [[0.0 for _ in vector] for vector in self.x]
        self.gradients = []  # flat, as the statistics saw them
        self.h = []
        self.ratio = []

    def extremes(self, extreme):
        """The min or max of h over the window, at every step so far."""
        return [extreme(self.h[max(0, t + 1 - self.window) : t + 1]) for t in range(len(self.h))]

    def smoothed(self, extreme, log_smooth):
        if not log_smooth:
            return average(self.extremes(extreme), self.beta)
        return math.exp(average([math.log(h + self.eps) for h in self.extremes(extreme)], self.beta))

    def step(self, gradients, f=(1.0, 1.0)):
        t, eps = len(self.h), self.eps
        g = [
            [float(gi) + group["weight_decay"] * xi for gi, xi in zip(gradient, x, strict=True)]
            for gradient, x, group in zip(gradients, self.x, self.groups, strict=True)
        ]
        norm = math.sqrt(sum(gi**2 for vector in g for gi in vector))
        limit = math.inf if self.clip_norm is None else self.clip_norm
        h_max_before = self.smoothed(max, self.h_max_log_smooth) if t > 0 else math.inf
        if self.adaptive_clip and t >= 2:
            limit = min(limit, math.sqrt(self.stat_protect_fac * h_max_before) + eps)
        if norm > limit:
            g = [[gi * limit / norm for gi in vector] for vector in g]
            norm = limit
        self.gradients.append([gi for vector in g for gi in vector])
        self.h.append(norm**2)
        norms = [math.sqrt(h) for h in self.h]
        self.ratio.append(raw_average(norms, self.beta) / (raw_average(self.h, self.beta) + eps))
        alpha = mu = None
        if t > 0:
            mean = [average([step[i] for step in self.gradients], self.beta) for i in range(len(self.gradients[0]))]
            variance = max(average(self.h, self.beta) - sum(mi**2 for mi in mean), eps)
            h_min = self.smoothed(min, self.h_min_log_smooth) + eps
            h_max = self.smoothed(max, self.h_max_log_smooth) + eps
            x = root(average(self.ratio, self.beta) + eps, variance + eps, h_min)
            spread = math.sqrt(max(h_max / h_min, 1 + eps))
            mu = max(x**2, ((spread - 1) / (spread + 1)) ** 2)
            alpha = (1 - math.sqrt(mu)) ** 2 / h_min
            if self.slow_start:
                alpha *= min(1.0, (t + 1) / (10 * self.window))
        shrink = min(1.0, (math.sqrt(h_max_before) + eps) / norm) if self.adaptive_clip else 1.0
        for k, group in enumerate(self.groups):
            rate = group["lr_factor"] * f[k] * (group["lr"] if alpha is None else alpha)
            if self.adaptive_clip and rate * norm > self.catastrophic_move_thresh:
                rate = self.catastrophic_move_thresh / norm
            momentum = group["momentum_factor"] * (group["momentum"] if mu is None else mu)
            if self.rate_in_velocity:
                self.velocity[k] = [
                    momentum * v + rate * shrink * gi for v, gi in zip(self.velocity[k], g[k], strict=True)
                ]
                move = self.velocity[k]
            else:
                self.velocity[k] = [momentum * v + shrink * gi for v, gi in zip(self.velocity[k], g[k], strict=True)]
                move = [rate * v for v in self.velocity[k]]
            self.x[k] = [x - m for x, m in zip(self.x[k], move, strict=True)]
        return self.x
