"""Literal float64 twins of AdaBayes' Algorithms 1 and 2: one weight at a time, absolute variances, summed gradients."""

import math


class AdaBayesTwin:
    """Algorithm 1. A schedule's factor f multiplies eta, sigma^2 (with every variance kept if scheduled) and lambda."""

    def __init__(
        self,
        mu,
        *,
        lr,
        lr_sgd,
        batch_size,
        betas=(0.9, 0.999),
        weight_decay=0.0,
        decay="exponential",
        variance="scheduled",
        weight_decay_at="old_mean",
    ):
        self.mu = [float(x) for x in mu]
        self.eta, self.lr_sgd, self.batch_size = lr, lr_sgd, batch_size
        self.beta1, self.weight_decay, self.decay = betas[0], weight_decay, decay
        self.variance, self.weight_decay_at = variance, weight_decay_at
        self.m = [0.0] * len(self.mu)
        self.sigma2_prior = [lr_sgd / batch_size] * len(self.mu)
        self.sigma2_post = None
        self.t = 0
        self.f = 1.0

    def prior(self, sigma2_post, f):
        eta, sigma2 = f * self.eta, f * self.lr_sgd / self.batch_size
        if self.decay == "first_order":
            return (1 - eta**2 / (2 * sigma2)) ** 2 * sigma2_post + eta**2
        fading = math.exp(-(eta**2) / sigma2)
        return fading * sigma2_post + sigma2 * (1 - fading)

    def step(self, gradient_of_mean_loss, f=1.0):
        self.t += 1
        if self.t > 1:
            if self.variance == "scheduled":  # the prior of the step before, at its rate, follows sigma2
                self.sigma2_prior = [self.prior(s, self.f) * f / self.f for s in self.sigma2_post]
            else:
                self.sigma2_prior = [self.prior(s, f) for s in self.sigma2_post]
        else:
            self.sigma2_prior = (
                [s * f for s in self.sigma2_prior] if self.variance == "scheduled" else self.sigma2_prior
            )
        self.sigma2_post = []
        for i, gradient in enumerate(gradient_of_mean_loss):
            g = -self.batch_size * float(gradient)
            self.m[i] = self.beta1 * self.m[i] + (1 - self.beta1) * g
            average_g = self.m[i] / (1 - self.beta1**self.t)
            sigma2_post = 1 / (1 / self.sigma2_prior[i] + g**2)
            self.sigma2_post.append(sigma2_post)
            self.mu[i] = decayed_step(self.mu[i], sigma2_post * average_g, f * self.weight_decay, self.weight_decay_at)
        self.f = f
        return self.mu


def decayed_step(mu, move, decay, at):
    return (1 - decay) * mu + move if at == "old_mean" else (1 - decay) * (mu + move)


class AdaBayesFPTwin:
    """Algorithm 2, with eps / eta added to the inverse variance."""

    def __init__(
        self,
        mu,
        *,
        lr,
        lr_sgd,
        batch_size,
        betas=(0.9, 0.999),
        weight_decay=0.0,
        weight_decay_at="old_mean",
        weight_decay_scheduled=True,
        eps=1e-8,
    ):
        self.mu = [float(x) for x in mu]
        self.eta, self.lr_sgd, self.batch_size = lr, lr_sgd, batch_size
        self.betas, self.weight_decay, self.eps = betas, weight_decay, eps
        self.weight_decay_at, self.weight_decay_scheduled = weight_decay_at, weight_decay_scheduled
        self.m = [0.0] * len(self.mu)
        self.v = [0.0] * len(self.mu)
        self.t = 0

    def step(self, gradient_of_mean_loss, f=1.0):
        self.t += 1
        eta = f * self.eta
        sigma2 = f * self.lr_sgd / self.batch_size
        beta1, beta2 = self.betas
        decay = self.weight_decay * (f if self.weight_decay_scheduled else 1)
        for i, gradient in enumerate(gradient_of_mean_loss):
            g = -self.batch_size * float(gradient)
            self.m[i] = beta1 * self.m[i] + (1 - beta1) * g
            self.v[i] = beta2 * self.v[i] + (1 - beta2) * g**2
            average_g = self.m[i] / (1 - beta1**self.t)
            average_g2 = self.v[i] / (1 - beta2**self.t)
            inverse = 1 / (2 * sigma2) + math.sqrt(1 / (4 * sigma2**2) + average_g2 / eta**2) + self.eps / eta
            self.mu[i] = decayed_step(self.mu[i], average_g / inverse, decay, self.weight_decay_at)
        return self.mu
