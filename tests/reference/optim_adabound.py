"""Literal float64 twin of AdaBound and AMSBound, one weight at a time."""

import math


class AdaBoundTwin:
    def __init__(
        self,
        w,
        *,
        lr,
        final_lr=0.1,
        betas=(0.9, 0.999),
        gamma=1e-3,
        eps=1e-8,
        weight_decay=0.0,
        ams=False,
    ):
        self.w = [float(x) for x in w]
        self.alpha, self.alpha_star, self.betas = lr, final_lr, betas
        self.gamma, self.eps, self.weight_decay, self.ams = gamma, eps, weight_decay, ams
        self.m = [0.0] * len(self.w)
        self.v = [0.0] * len(self.w)
        self.v_max = [0.0] * len(self.w)
        self.t = 0

    def step(self, gradient, f=1.0):
        self.t += 1
        beta1, beta2 = self.betas
        step_size = f * self.alpha * math.sqrt(1 - beta2**self.t) / (1 - beta1**self.t)
        final = f * self.alpha_star
        eta_l = final * (1 - 1 / (self.gamma * self.t + 1))
        eta_u = final * (1 + 1 / (self.gamma * self.t))
        for i, g in enumerate(gradient):
            g = float(g) + self.weight_decay * self.w[i]
            self.m[i] = beta1 * self.m[i] + (1 - beta1) * g
            self.v[i] = beta2 * self.v[i] + (1 - beta2) * g**2
            self.v_max[i] = max(self.v_max[i], self.v[i])
            phi = self.v_max[i] if self.ams else self.v[i]
            rate = min(max(step_size / (math.sqrt(phi) + self.eps), eta_l), eta_u)
            self.w[i] -= rate * self.m[i]
        return self.w
