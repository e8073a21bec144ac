"""Literal float64 twins of the algorithms that torch ships, with torch's conventions, one weight at a time."""

import math
from typing import ClassVar


class Twin:
    """Numbers and per-weight memory; a subclass states the rule for one weight."""

    defaults: ClassVar[dict] = {}

    def __init__(self, w, *, lr, weight_decay=0.0, **numbers):
        self.w = [float(x) for x in w]
        self.lr, self.weight_decay = lr, weight_decay
        self.n = {**self.defaults, **numbers}
        self.memory = [{} for _ in self.w]
        self.t = 0

    def step(self, gradient, f=1.0):
        self.t += 1
        for i, g in enumerate(gradient):
            self.w[i] = self.rule(self.w[i], float(g), f * self.lr, self.memory[i])
        return self.w

    def l2(self, w, g):
        return g + self.weight_decay * w


class SGDTwin(Twin):
    defaults: ClassVar[dict] = {"momentum": 0.0}

    def rule(self, w, g, lr, s):
        s["b"] = self.n["momentum"] * s.get("b", 0.0) + self.l2(w, g)
        return w - lr * s["b"]


class AdamTwin(Twin):
    defaults: ClassVar[dict] = {"betas": (0.9, 0.999), "eps": 1e-8, "amsgrad": False}

    def rule(self, w, g, lr, s):
        return self.adam(w, self.l2(w, g), lr, s)

    def adam(self, w, g, lr, s):
        (b1, b2), eps = self.n["betas"], self.n["eps"]
        s["m"] = b1 * s.get("m", 0.0) + (1 - b1) * g
        s["v"] = b2 * s.get("v", 0.0) + (1 - b2) * g**2
        s["max"] = max(s.get("max", 0.0), s["v"])
        v = s["max"] if self.n["amsgrad"] else s["v"]
        return w - lr * s["m"] / (1 - b1**self.t) / (math.sqrt(v / (1 - b2**self.t)) + eps)


class AMSGradTwin(AdamTwin):
    defaults: ClassVar[dict] = {**AdamTwin.defaults, "amsgrad": True}


class AdamWTwin(AdamTwin):
    def rule(self, w, g, lr, s):
        return self.adam((1 - lr * self.weight_decay) * w, g, lr, s)


class RAdamTwin(Twin):
    defaults: ClassVar[dict] = {"betas": (0.9, 0.999), "eps": 1e-8}

    def rule(self, w, g, lr, s):
        (b1, b2), eps, t = self.n["betas"], self.n["eps"], self.t
        g = self.l2(w, g)
        s["m"] = b1 * s.get("m", 0.0) + (1 - b1) * g
        s["v"] = b2 * s.get("v", 0.0) + (1 - b2) * g**2
        m = s["m"] / (1 - b1**t)
        rho_inf = 2 / (1 - b2) - 1
        rho = rho_inf - 2 * t * b2**t / (1 - b2**t)
        if rho <= 5:
            return w - lr * m
        r = math.sqrt((rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho))
        return w - lr * m * r * math.sqrt(1 - b2**t) / (math.sqrt(s["v"]) + eps)


class AdagradTwin(Twin):
    defaults: ClassVar[dict] = {"eps": 1e-10}

    def rule(self, w, g, lr, s):
        g = self.l2(w, g)
        s["G"] = s.get("G", 0.0) + g**2
        return w - lr * g / (math.sqrt(s["G"]) + self.n["eps"])


class RMSpropTwin(Twin):
    defaults: ClassVar[dict] = {"alpha": 0.99, "eps": 1e-8}

    def rule(self, w, g, lr, s):
        g = self.l2(w, g)
        s["v"] = self.n["alpha"] * s.get("v", 0.0) + (1 - self.n["alpha"]) * g**2
        return w - lr * g / (math.sqrt(s["v"]) + self.n["eps"])
