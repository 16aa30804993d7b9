"""What Adam remembers, in samples, and how to keep it when the batch changes (TC1: a control).

Statement: a settled first moment lags the gradient by B beta/(1 - beta) samples and both moments remember B/(1 - beta). With
bias correction a constant gradient is never lagged, from the first update on, and the first updates carry all of one
gradient's noise. On a shrinking gradient the lag makes steps larger, not smaller. Keeping c and the memory in samples at k
times the batch needs k < 1/(1 - beta).
"""

from __future__ import annotations

import numpy as np
import sympy as sp

from theory.result import Result, prove, prove_close, prove_equal
from twoclocks import progress
from twoclocks.errors import SettingError


def derive() -> Result:
    """Derive, prove `progress.momentum_lag`, `memory_samples`, `momentum_variance`, `decay_of_half_life`, `scale_adam`.

    Raises
    ------
    ProofError
        If a shipped function or a claim of the statement does not follow.
    """
    batch, k, h, d, lr, eps = sp.symbols("B k h d eta epsilon", positive=True)
    t = sp.Symbol("t", positive=True, integer=True)
    j = sp.Symbol("j", nonnegative=True, integer=True)
    beta = 1 / (1 + d)  # 0 < beta < 1 as a positive symbol, so that geometric sums converge
    b = sp.Symbol("beta", positive=True)
    weight = (1 - beta) * beta**j  # of the gradient j updates ago in a settled moment

    # 1. Weights sum to 1; their mean age is beta/(1 - beta) updates of B samples.
    prove_equal(sp.summation(weight, (j, 0, sp.oo)), sp.Integer(1), "weights of a settled moment")
    # sum j beta^j = beta d/dbeta 1/(1 - beta)
    age = sp.simplify(((1 - b) * b * sp.diff(1 / (1 - b), b)).subs(b, beta))
    prove_equal(progress.momentum_lag(batch, beta), batch * age, "progress.momentum_lag")
    memory = batch / (1 - b)
    prove_equal(progress.memory_samples(batch, b), memory, "progress.memory_samples")
    prove_equal(memory - batch * b / (1 - b), batch, "memory is the lag and the present update")

    # 2. Bias correction divides by 1 - beta^t, the weights' sum after t updates: a constant gradient comes out unchanged.
    total = 1 - b**t
    for updates in (1, 2, 5):
        prove_equal(sum((1 - b) * b**i for i in range(updates)), total.subs(t, updates), "weights after t updates")

    # 3. Its noise relative to one gradient's: sum of squared weights. All of it at t = 1, (1 - beta)/(1 + beta) settled.
    variance = (1 - b) * (1 + b**t) / ((1 + b) * (1 - b**t))
    for updates in (1, 2, 3, 6):
        squares = sum(((1 - b) * b**i / (1 - b**updates)) ** 2 for i in range(updates))
        prove_equal(variance.subs(t, updates), squares, "noise of a bias-corrected moment")
    prove_equal(progress.momentum_variance(t, b), variance, "progress.momentum_variance")
    settled = sp.limit(variance.subs(b, sp.Rational(9, 10)), t, sp.oo)
    prove_equal(settled, ((1 - b) / (1 + b)).subs(b, sp.Rational(9, 10)), "settled noise")

    # 4. A gradient that shrinks as q^t, q < 1: the moment exceeds the present gradient, because older ones were larger.
    q = sp.Symbol("q", positive=True)
    moment = (1 - b) * (q**t - b**t) / ((1 - b**t) * (q - b))
    for updates in (1, 2, 4):
        literal = sum((1 - b) * b ** (updates - 1 - i) * q**i for i in range(updates)) / (1 - b**updates)
        prove_equal(moment.subs(t, updates), literal, "first moment of a shrinking gradient")
    for updates in (2, 3, 5):  # older gradients are larger: the weighted mean exceeds the youngest
        excess = sp.simplify((moment.subs(t, updates) / q ** (updates - 1) - 1).subs({b: beta, q: 1 / (1 + h)}))
        prove(sp.factor(excess).is_positive, "on a shrinking gradient momentum steps further than the present gradient")

    # 5. k times the batch at the same drift rate c = eta/sqrt(B) and the same memory B/(1 - beta).
    scaled = 1 - k * (1 - b)
    prove_equal(progress.memory_samples(k * batch, scaled), memory, "scaled decay keeps the memory in samples")
    prove_equal(sp.sqrt(k) * lr / sp.sqrt(k * batch), lr / sp.sqrt(batch), "scaled learning rate keeps the drift rate")
    for ratio in (sp.Rational(1, 4), sp.Integer(4), sp.Integer(9)):
        beta1, beta2 = sp.Rational(9, 10), sp.Rational(99, 100)
        got = progress.scale_adam(ratio, lr=lr, betas=(beta1, beta2), eps=eps)
        prove_equal(got["lr"], lr * sp.sqrt(ratio), "progress.scale_adam lr")
        prove_equal(got["eps"], eps / sp.sqrt(ratio), "progress.scale_adam eps")
        for value, old in zip(got["betas"], (beta1, beta2), strict=True):
            prove_equal(value, scaled.subs({k: ratio, b: old}), "progress.scale_adam betas")
    for ratio, allowed in ((9.99, True), (10.0, False), (16.0, False)):  # beta1 = 0.9: k < 10
        try:
            progress.scale_adam(ratio, lr=1e-6, betas=(0.9, 0.999), eps=1e-8)
        except SettingError:
            prove(not allowed, "progress.scale_adam refuses k < 1/(1 - beta1)")
        else:
            prove(allowed, "progress.scale_adam accepts k >= 1/(1 - beta1)")

    # 6. Half-lives in samples say the same to first order: 2^(-kB/h) = beta^k = 1 - k (1 - beta) + O((1 - beta)^2).
    half = 2 ** (-batch / h)
    prove_equal(half.subs(batch, k * batch), half**k, "half-lives compose")
    small = sp.Symbol("s", positive=True)
    prove_equal(sp.series((1 - small) ** k, small, 0, 2).removeO(), scaled.subs(b, 1 - small), "half-life and memory agree to first order")
    sizes = np.array([8.0, 64.0, 512.0])
    prove_close(progress.decay_of_half_life(1000.0, sizes), np.exp(-np.log(2) * sizes / 1000.0), "progress.decay_of_half_life")

    named = sp.Symbol
    return Result(
        name="optimizer_memory",
        statement="Momentum lags by B beta/(1 - beta) samples; Adam keeps its drift rate and memory at k times the batch only for k < 1/(1 - beta).",
        assumptions=(
            r"exponential moments with decay $\beta$, bias-corrected; one gradient of $B$ completions an update",
            r"noise of successive gradients independent; $g_t \propto q^t$ for the shrinking gradient",
        ),
        equations={
            "lag": (named(r"\mathrm{lag}"), batch * b / (1 - b)),
            "memory": (named(r"\mathrm{memory}"), memory),
            "variance": (named(r"\mathrm{Var}\,\hat m_t/\mathrm{Var}\,g"), variance),
            "shrinking": (named(r"\hat m_t\ (g_t = q^t)"), moment),
            "scaled": (named(r"\beta'"), scaled),
            "domain": (named(r"k_{\max}"), 1 / (1 - b)),
            "half_life": (named(r"\beta(h)"), half),
        },
        proven="Geometric sums and SymPy symbols through `progress.momentum_lag`, `memory_samples`, `momentum_variance`, `scale_adam`; its domain by trial.",
        simulated="tests/test_trajectory.py (noise of simulated Adam's first updates; Adam against normalised updates on a coherent quadratic).",
        carries="TC1 (b): optimizer memory as a rival cause of a batch gap.",
    )
