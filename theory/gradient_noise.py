"""Estimating gradient noise without bias, and what rollout reuse does to the critical batch (TC2, and a control for S).

Statement: squared norms at two batch sizes give |G|^2 and tr Sigma. One-way analysis of variance splits the noise between and
within prompts once the pair covariance |G_b|^2/(K - 1)^2, which a group baseline puts between completions, is removed. Reuse
inflates noise by delta, which scales the noise batch by 1 + delta and raises the critical batch iff u = c h0/(2 f a) is below
1/(1 + sqrt(1 + delta)): below 1/2 at first, and never for long.
"""

from __future__ import annotations

import itertools

import numpy as np
import sympy as sp
from scipy import integrate, stats

from theory.result import Result, prove_close, prove_equal
from twoclocks import noise, progress


def pair_product(group: int, baseline: str) -> tuple[sp.Expr, sp.Expr]:
    """(E[g_1 . g_2], |E g|^2) of two completions of one prompt, exactly, by enumerating every group of a two-armed policy.

    A Bernoulli logit with success chance p has score 1 - p or -p; rewards are w (success) and v.
    """
    p = sp.Symbol("p", positive=True)
    w, v = sp.symbols("w v", real=True)
    product = mean = sp.Integer(0)
    for outcome in itertools.product((1, 0), repeat=group):
        chance = sp.Mul(*(p if o else 1 - p for o in outcome))
        reward = [w if o else v for o in outcome]
        score = [1 - p if o else -p for o in outcome]
        total = sum(reward)
        if baseline == "leave-one-out":
            advantage = [x - (total - x) / (group - 1) for x in reward]
        elif baseline == "group":
            advantage = [x - total / sp.Integer(group) for x in reward]
        else:
            advantage = reward
        product += chance * advantage[0] * score[0] * advantage[1] * score[1]
        mean += chance * advantage[0] * score[0]
    return sp.factor(sp.expand(product)), sp.factor(sp.expand(mean)) ** 2


def general_pair_product() -> tuple[sp.Expr, sp.Expr]:
    """(E[g_1 . g_2], |G_b|^2) with a leave-one-out baseline for any K and any policy: moment algebra.

    A_1 = r_1 - r_2/(K - 1) - R, A_2 = r_2 - r_1/(K - 1) - R, with R from the other completions. (r_1, s_1), (r_2, s_2) and R are
    independent, E[s] = 0 and E[r s] = G; a product s_1 . s_2 of vectors is kept by coordinate.
    """
    r1, r2, rest, group, g, second = sp.symbols("r_1 r_2 R K G H")
    product = sp.Poly(sp.expand((r1 - r2 / (group - 1) - rest) * (r2 - r1 / (group - 1) - rest)), r1, r2, rest)
    moment = {0: sp.Integer(0), 1: g, 2: second}  # E[r^i s]
    expected = sum(coefficient * moment[i] * moment[j] * sp.Symbol("q") ** k for (i, j, k), coefficient in product.terms())
    return sp.simplify(expected), g**2


def derive() -> Result:
    """Derive, prove the estimators of `twoclocks.noise`, and return the result.

    Raises
    ------
    ProofError
        If a shipped function or a claim of the statement does not follow.
    """
    signal, inter, intra, trace = sp.symbols("G2 s_inter s_intra T", positive=True)
    small, big, prompts, group, kappa, shrink = sp.symbols("B_1 B_2 P K kappa z", positive=True)

    # 1. Two batches: E|g_B|^2 = |G|^2 + tr Sigma/B at both sizes, solved.
    norms = {size: signal + trace / size for size in (small, big)}
    prove_equal(noise.two_batch_signal(norms[small], norms[big], small, big), signal, "noise.two_batch_signal")
    prove_equal(noise.two_batch_noise(norms[small], norms[big], small, big), trace, "noise.two_batch_noise")

    # 2. Pair covariance, for any K by moments and as a check by enumerating groups. Leave-one-out and group mean give
    #    |G_b|^2 (1 + 1/(K - 1)^2) for the product of two completions relative to their own squared mean; no baseline gives none.
    k = sp.Symbol("K")
    product, square = general_pair_product()
    prove_equal(product, square * (1 + noise.pair_covariance(k, "leave-one-out")), "noise.pair_covariance (any K)")
    for size in (2, 3, 4):
        for baseline in ("none", "leave-one-out", "group"):
            product, square = pair_product(size, baseline)
            shipped = sp.nsimplify(noise.pair_covariance(sp.Integer(size), baseline))
            prove_equal(product, square * (1 + shipped), f"noise.pair_covariance ({baseline}, K = {size})")

    # 3. Expected sums of squares with E|G_b|^2 = |G|^2 + s_inter, and the three unknowns solved for.
    own = signal + inter + intra
    pair = (signal + inter) * (1 + kappa)
    squares = prompts * group * own
    prompt_squares = squares + prompts * group * (group - 1) * pair
    total_square = prompt_squares + prompts * (prompts - 1) * group**2 * signal
    sums = [shrink**2 * x for x in (squares, prompt_squares, total_square)]
    for got, expected, what in zip(noise.split_parts(*sums, prompts, group, kappa, shrink), (signal, inter, intra), ("signal", "inter", "intra"), strict=True):
        prove_equal(got, expected, f"noise.split_parts, {what}")
    #    Left in, the pair covariance goes to the prompts' share.
    _, biased, _ = noise.split_parts(squares, prompt_squares, total_square, prompts, group, 0, 1)
    bias = sp.factor(biased - inter)
    prove_equal(bias, kappa * (signal + inter), "bias of the inter-prompt part without the correction")

    # 4. Noise of the batch mean, P K of it over |G|^2: completions at which noise equals signal.
    covariance = inter / prompts + intra / (prompts * group) + (group - 1) * kappa * (signal + inter) / (group * prompts)
    prove_equal(total_square / (prompts * group) ** 2 - signal, covariance, "tr Cov of the batch gradient")
    scale = sp.simplify(prompts * group * covariance / signal)
    prove_equal(noise.noise_batch(signal, inter, intra, group, kappa), scale, "noise.noise_batch")

    # 5. Reuse: completions weighted by rho with log rho ~ N(-v/2, v) independent of the gradient have noise E[rho^2] = exp(v).
    v = sp.Symbol("v", positive=True)
    normal = sp.Symbol("y", real=True)
    density = sp.exp(-((normal + v / 2) ** 2) / (2 * v)) / sp.sqrt(2 * sp.pi * v)
    weights = [sp.simplify(sp.integrate(sp.exp(power * normal) * density, (normal, -sp.oo, sp.oo))) for power in (1, 2)]
    prove_equal(weights[0], sp.Integer(1), "importance weights have mean 1")
    prove_equal(weights[1], sp.exp(v), "second moment of the importance weights")
    ages = np.array([0.0, 64.0, 512.0])
    second = [1.0 if j == 0 else integrate.quad(lambda u, j=j: np.exp(2 * u) * stats.norm(-(4e-3 * j) / 2, np.sqrt(4e-3 * j)).pdf(u), -30, 40)[0] for j in ages]
    prove_close(1 + noise.reuse_inflation(ages, 1e-3, spread=np.sqrt(4e3)), second, "noise.reuse_inflation", 1e-7)

    #    Within a prompt E|rho g|^2 - |G_b|^2 = (1 + delta)(s_intra + |G_b|^2) - |G_b|^2.
    delta = sp.Symbol("delta", positive=True)
    within = signal + inter
    reused = (1 + delta) * (intra + within) - within
    prove_equal(noise.reused_intra(intra, signal, inter, delta), reused, "noise.reused_intra")
    for updates in (1, 2, 4):
        inflations = [np.exp((2e-3) ** 2 * k * 64.0 * 900.0) - 1 for k in range(updates)]
        prove_close(noise.mean_inflation(64.0, 2e-3, updates_per_rollout=updates, spread=30.0), np.mean(inflations), "noise.mean_inflation")

    # 6. sigma^2 -> sigma^2 (1 + delta) in the local model; h0 is the step's own variance and stays.
    a, h0, h1, c, f, mu, sigma = sp.symbols("a h_0 h_1 c f mu sigma", positive=True)
    drift, pairs = mu**2 / sigma, (mu / sigma) ** 2
    grown = sigma * sp.sqrt(1 + delta)
    inflated = {k: sp.nsimplify(value, rational=True) for k, value in noise.inflated_model(delta, a=a, h0=h0, h1=h1).items()}
    prove_equal(inflated["a"], a * drift.subs(sigma, grown) / drift, "noise.inflated_model a")
    prove_equal(inflated["h0"], h0, "noise.inflated_model h0")
    prove_equal(inflated["h1"], h1 * pairs.subs(sigma, grown) / pairs, "noise.inflated_model h1")
    prove_equal(inflated["h0"] / inflated["h1"], h0 / h1 * (1 + delta), "the noise batch grows by 1 + delta")
    critical = sp.simplify(progress.critical_batch(f, c, **inflated))
    prove_equal(critical, h0 / h1 * (1 + delta) * (2 * f * a / (c * h0 * sp.sqrt(1 + delta)) - 1), "critical batch under reuse")
    #    With u = c h0/(2 f a) and w = sqrt(1 + delta): B_crit(delta) - B_crit(0) = (h0/h1)(w - 1)(1/u - 1 - w). It rises iff
    #    u < 1/(1 + w), and is largest at w = 1/(2u).
    u, w = sp.symbols("u w", positive=True)
    of_w = sp.simplify(critical.subs(a, c * h0 / (2 * f * u)).subs(delta, w**2 - 1))
    change = h0 / h1 * (w - 1) * (1 / u - 1 - w)
    prove_equal(of_w - of_w.subs(w, 1), change, "change of the critical batch by reuse")
    (best,) = sp.solve(sp.diff(of_w, w), w)
    prove_equal(best, 1 / (2 * u), "reuse that raises the critical batch most")

    named = sp.Symbol
    return Result(
        name="gradient_noise",
        statement="Unbiased gradient-noise estimators without the group baseline's pair covariance; reuse raises B_crit while u < 1/(1 + sqrt(1 + delta)).",
        assumptions=(
            r"two batches: independent completions, $E\|\bar g_B\|^2 = \|G\|^2 + \mathrm{tr}\,\Sigma/B$; $N_1, N_2$ are the two squared norms",
            r"groups: $P$ independent prompts, $K$ exchangeable completions of each, scores of mean zero; $\kappa$ in units of $\|G_b\|^2$",
            r"reuse: $\log\rho \sim \mathcal N(-v/2, v)$ independent of the gradient, $\delta = e^v - 1$; $u = c h_0/(2fa)$",
            r"$B_{\mathrm{crit}}(\delta)$: all noise grows by $1 + \delta$, as where intra-prompt noise dominates",
        ),
        equations={
            "two_signal": (named(r"\|G\|^2"), noise.two_batch_signal(named("N_1"), named("N_2"), small, big)),
            "two_noise": (named(r"\mathrm{tr}\,\Sigma"), noise.two_batch_noise(named("N_1"), named("N_2"), small, big)),
            "kappa": (kappa, 1 / (group - 1) ** 2),
            "covariance": (named(r"\mathrm{tr}\,\mathrm{Cov}\,\bar g"), covariance),
            "bias": (named(r"\mathrm{bias}(s_{\mathrm{inter}})"), bias),
            "noise_batch": (named(r"N_{\mathrm{noise}}"), scale),
            "inflation": (delta, sp.exp(v) - 1),
            "critical": (named(r"B_{\mathrm{crit}}(\delta)"), critical),
            "critical_change": (named(r"B_{\mathrm{crit}}(\delta) - B_{\mathrm{crit}}(0)"), change.subs(w, sp.sqrt(1 + delta))),
            "reused": (named(r"s_{\mathrm{intra}}(\delta)"), reused),
        },
        proven="Pair covariance by moment algebra for any K, and by enumeration at K = 2, 3, 4; SymPy symbols through `noise.*` and `progress.critical_batch`.",
        simulated="tests/test_noise.py (drawn groups, unbiased within 3 standard errors).",
        carries="TC2: how B_crit moves with S.",
    )
