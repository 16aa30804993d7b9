"""Drift of each update's policy from the policy that sampled its rollout, from the tensors the loss already holds.

TRL logs clip fractions but neither the distance to the rollout policy nor the size of a step. Sums are kept on the device
and read once per log, so that measuring costs no second forward pass and one host synchronisation per log.
"""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import TrainerCallback

PREFIX = "twoclocks/"
METER = "meter.safetensors"
# Bounds of the histogram of sign(A) log r: a ratio that moved with its advantage is positive
EDGES = (-5.0, -2.0, -1.0, -0.5, -0.2, -0.1, -0.05, -0.02, -0.01, 0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_SUMS = ("tokens", "abs", "k3", "m2", "r", "r2", "n_pos", "r_pos", "n_neg", "r_neg", "clip_high", "clip_low", "mismatch", "n_mismatch")


def token_sums(log_ratio: torch.Tensor, mask: torch.Tensor, advantage: torch.Tensor, clip: tuple[float, float]) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums over the tokens of the mask, in the order of `_SUMS` but the last two, and the largest log ratio.

    Parameters
    ----------
    log_ratio : tensor (rows, tokens)
        log pi - log pi_rollout, nats.
    mask : tensor (rows, tokens)
        1 on completion tokens.
    advantage : tensor (rows,) or (rows, tokens)
    clip : (float, float)
        eps_low, eps_high.
    """
    lr, mask = log_ratio.float(), mask.float()
    a = (advantage if advantage.dim() == 2 else advantage[:, None]).expand_as(lr)
    r = torch.exp(lr)
    positive, negative = mask * (a > 0), mask * (a < 0)
    terms = (
        mask,
        lr.abs() * mask,
        (torch.expm1(lr) - lr) * mask,
        lr**2 * mask,
        r * mask,
        r**2 * mask,
        positive,
        r * positive,
        negative,
        r * negative,
        positive * (r > 1 + clip[1]),
        negative * (r < 1 - clip[0]),
    )
    return torch.stack([t.sum() for t in terms]), lr.masked_fill(mask == 0, -torch.inf).max()


def histogram(log_ratio: torch.Tensor, mask: torch.Tensor, advantage: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
    """Token counts of sign(A) log r between `EDGES`, (2, len(EDGES) + 1): negative advantages, then positive ones."""
    a = (advantage if advantage.dim() == 2 else advantage[:, None]).expand_as(log_ratio)
    size = len(EDGES) + 1
    bins = torch.bucketize(torch.sign(a) * log_ratio.float(), edges) + size * (a > 0)
    counts = torch.zeros(2 * size, dtype=torch.float32, device=log_ratio.device)  # scatter: no boolean index, which would wait for the device
    return counts.scatter_add_(0, bins.flatten(), (mask.float() * (a != 0)).flatten()).view(2, size)


def summary(sums: list[float], largest: float) -> dict[str, float]:
    """Metrics of one update from its token sums; what was not measured is left out."""
    s = dict(zip(_SUMS, sums, strict=True))
    tokens, found = s["tokens"], {}
    if tokens:
        found = {
            "drift_abs": s["abs"] / tokens,
            "drift_k3": s["k3"] / tokens,
            "drift_m2": s["m2"] / tokens,
            "ess": s["r"] ** 2 / (tokens * s["r2"]),
            "ratio_max": float(torch.tensor(largest).exp()),
            "clip_frac_high": s["clip_high"] / tokens,
            "clip_frac_low": s["clip_low"] / tokens,
        }
    for name, total, count in (("ratio_pos", "r_pos", "n_pos"), ("ratio_neg", "r_neg", "n_neg"), ("engine_mismatch", "mismatch", "n_mismatch")):
        if s[count]:
            found[name] = s[total] / s[count]
    return found


class DriftMeter(TrainerCallback):
    """Measures drift at every update, and what the update did to the parameters at every `probe_every`-th.

    Per update, over the update's own tokens before its step, with r = pi/pi_rollout: mean |log r| (`drift_abs`), the k3
    estimate of KL(pi_rollout || pi), r - 1 - log r (`drift_k3`), mean (log r)^2 (`drift_m2`), effective sample size
    (sum r)^2/(n sum r^2) (`ess`), largest r (`ratio_max`), mean r over tokens of positive and of negative advantage
    (`ratio_pos`, `ratio_neg`), shares of tokens clipped above at positive and below at negative advantage
    (`clip_frac_high`, `clip_frac_low`; by token, whatever the loss clips) and the same under `.../inner_<k>` for the k-th update of a rollout. The first update
    of a rollout shows none, since the policy has not moved (with one update a rollout nothing is logged); the drift that the
    last one causes needs the probe.

    Every `probe_every` updates: norm of the parameter change (`update_norm`), distance from the start (`distance`), cosine to the
    previous change (`update_cos`), and, by one extra forward pass over the update's last micro-batch after the step, the
    drift it left (`drift_end_abs`, `drift_end_k3`); `probe_seconds` is their cost. Null, that is absent, where not measured.

    Cumulative on the sample clock: `drift_cum_abs`, `drift_cum_k3`, sums over rollouts of the drift at their last update.

    Parameters
    ----------
    probe_every : int
        0 never measures parameters. Memory while on: the start, and at a measured update the parameters before it and two
        changes, each the size of the trainable parameters.
    reference : {"trainer", "engine"}
        Whose log-probabilities of the rollout the ratio is taken to: recomputed by the trainer (and what TRL clips by), or
        reported by the generation engine (vLLM). The mean |difference| of the two is `engine_mismatch`, logged apart.
    """

    def __init__(self, probe_every: int = 0, reference: Literal["trainer", "engine"] = "trainer") -> None:
        self.probe_every, self.reference = probe_every, reference
        self.delta: list[torch.Tensor] = []  # change of each trainable parameter in the last measured update
        self.cumulative = {"drift_cum_abs": 0.0, "drift_cum_k3": 0.0}
        self.ratio_hist: str | None = None  # JSON of the last reading: token counts by sign(A) log r, for log_history and records
        self._trainer: Any = None
        self._start: list[torch.Tensor] = []
        self._before: list[torch.Tensor] = []
        self._open: list[Any] | None = None  # sums of the update under way: token sums, largest, histogram
        self._done: list[tuple[int, int, list[Any]]] = []  # (inner step, last of its rollout) of updates since the last log
        self._probes: dict[str, list[float]] = {}
        self._last_micro: dict[str, Any] = {}
        self._edges: torch.Tensor | None = None
        self.seconds = 0.0

    def reset(self) -> None:
        """Forget a run: the trainer is about to begin or resume one."""
        self.delta, self._start, self._before, self._open, self._done, self._probes, self._last_micro = [], [], [], None, [], {}, {}
        self.cumulative = dict.fromkeys(self.cumulative, 0.0)

    def save(self, folder: Path) -> dict[str, Any]:
        """What a checkpoint keeps: the cumulative drift, and beside it the start and the last change where parameters are measured."""
        if self._start:
            from safetensors.torch import save_file

            kept = {f"start/{k}": p for k, p in enumerate(self._start)} | {f"delta/{k}": p for k, p in enumerate(self.delta)}
            save_file({name: p.cpu().clone() for name, p in kept.items()}, folder / METER)
        return dict(self.cumulative)

    def restore(self, saved: dict[str, Any], folder: Path) -> None:
        """Inverse of `save`; parameters that were not kept are measured from the resume on."""
        self.cumulative |= saved
        if self.probe_every and (folder / METER).exists():
            from safetensors.torch import load_file

            kept, device = load_file(folder / METER), self.parameters()[0].device
            for name, part in (("start", self._start), ("delta", self.delta)):
                part += [kept[f"{name}/{k}"].to(device) for k in range(sum(key.startswith(name) for key in kept))]

    def attach(self, trainer: Any) -> None:
        """Called once by the trainer that is measured."""
        self._trainer = trainer

    def parameters(self) -> list[torch.Tensor]:
        """Trainable parameters, in a fixed order."""
        return [p for p in self._trainer.model.parameters() if p.requires_grad]

    def due(self, update: int) -> bool:
        """Whether an update (from 0) is probed."""
        return self.probe_every > 0 and update % self.probe_every == 0

    # -- token space -----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def add(self, logps: torch.Tensor, inputs: dict[str, Any], clip: tuple[float, float]) -> None:
        """Add a micro-batch: log-probabilities that its loss computed, and its rollout's own."""
        old, engine = inputs.get("old_per_token_logps"), inputs.get("sampling_per_token_logps")
        anchor = engine if self.reference == "engine" else old
        self._last_micro = inputs
        if anchor is None:
            return
        mask = (inputs["completion_mask"] * inputs.get("tool_mask", 1)).float()  # tool output is not the policy's
        once = self._trainer.timetable.rollout(self._trainer.state.global_step).setting.updates_per_rollout == 1
        # At one update a rollout the ratio to the trainer's own log-probabilities is 1 by construction: nothing is measured
        measured = torch.zeros_like(mask) if once and self.reference == "trainer" else mask
        unscored = torch.isnan(anchor)  # engines report NaN where they could not score; a policy's own NaN stays visible
        log_ratio = torch.where(unscored, 0.0, logps.detach() - anchor)
        sums, largest = token_sums(log_ratio, measured * ~unscored, inputs["advantages"], clip)
        apart = torch.zeros(2, device=sums.device)
        if engine is not None and old is not None:
            scored = mask * ~torch.isnan(engine)
            apart = torch.stack([(torch.where(torch.isnan(engine), 0.0, old - engine).abs() * scored).sum(), scored.sum()])
        if self._edges is None or self._edges.device != sums.device:
            self._edges = torch.tensor(EDGES, device=sums.device)
        sums, counts = torch.cat([sums, apart]), histogram(log_ratio, measured * ~unscored, inputs["advantages"], self._edges)
        if self._open is None:
            self._open = [sums, largest, counts]
        else:
            self._open = [self._open[0] + sums, torch.maximum(self._open[1], largest), self._open[2] + counts]

    # -- parameter space -------------------------------------------------------------------------------------------

    @torch.no_grad()
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.probe_every and not self._start:
            self._start = [p.detach().clone() for p in self.parameters()]

    @torch.no_grad()
    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.due(state.global_step) or self.due(state.global_step + 1):
            with self._timed():
                self._before = [p.detach().clone() for p in self.parameters()]

    @torch.no_grad()
    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        timetable, update = self._trainer.timetable, state.global_step
        rollout = timetable.rollout(update)
        inner = update - rollout.update
        if self._before:
            with self._timed():
                self._measure(update)
        if self._open is not None:
            self._done.append((inner, int(inner == rollout.updates - 1), self._open))
        self._open, self._last_micro = None, {}

    def _measure(self, update: int) -> None:
        previous, self.delta = self.delta, torch._foreach_sub([p.detach() for p in self.parameters()], self._before)
        self._before = []
        if not self.due(update):
            return
        norm = _norm(self.delta)
        found = {"update_norm": norm, "distance": _norm(torch._foreach_sub([p.detach() for p in self.parameters()], self._start))}
        if previous and float(scale := norm * _norm(previous)) > 0:
            found["update_cos"] = sum((a * b).sum() for a, b in zip(previous, self.delta, strict=True)) / scale
        if self._last_micro.get("old_per_token_logps") is not None:
            logps = self._trainer.score(self._last_micro)
            mask = self._last_micro["completion_mask"] * self._last_micro.get("tool_mask", 1)
            sums, _ = token_sums(logps - self._last_micro["old_per_token_logps"], mask, self._last_micro["advantages"], (1.0, torch.inf))
            found["drift_end_abs"], found["drift_end_k3"] = sums[1] / sums[0], sums[2] / sums[0]
        for name, value in found.items():
            self._probes.setdefault(name, []).append(float(value))

    @contextlib.contextmanager
    def _timed(self) -> Any:
        start = time.perf_counter()
        yield
        spent = time.perf_counter() - start
        self.seconds += spent
        self._probes.setdefault("probe_seconds", []).append(spent)

    # -- reading ---------------------------------------------------------------------------------------------------

    def read(self) -> dict[str, float]:
        """Metrics since the last reading, reduced over processes; one host synchronisation."""
        self.ratio_hist = None
        found: dict[str, float] = {k: sum(v) / len(v) if k != "probe_seconds" else sum(v) for k, v in self._probes.items()}
        self._probes = {}
        if not self._done:
            return found
        accelerator = self._trainer.accelerator
        sums = accelerator.reduce(torch.stack([o[0] for _, _, o in self._done]), reduction="sum")
        largest = accelerator.gather(torch.stack([o[1] for _, _, o in self._done])[None]).amax(0)
        counts = accelerator.reduce(torch.stack([o[2] for _, _, o in self._done]).sum(0), reduction="sum")
        flat = torch.cat([sums.double().flatten(), largest.double(), counts.double().flatten()]).tolist()
        width, n = len(_SUMS), len(self._done)
        rows = [flat[i * width : (i + 1) * width] for i in range(n)]
        tops = flat[n * width : n * width + n]
        for (inner, last, _), row, top in zip(self._done, rows, tops, strict=True):
            one = summary(row, top)
            if last and inner > 0 and one:
                self.cumulative["drift_cum_abs"] += one["drift_abs"]
                self.cumulative["drift_cum_k3"] += one["drift_k3"]
            for name in ("clip_frac_high", "clip_frac_low"):
                if name in one:
                    found[f"{name}/inner_{inner}"] = one[name]
        found |= summary([sum(column) for column in zip(*rows, strict=True)], max(tops))
        found |= self.cumulative
        found["inner_step"] = self._done[-1][0]
        self.ratio_hist = json.dumps([int(v) for v in flat[n * width + n :]]) if any(row[0] for row in rows) else None
        self._done = []
        return found


def _norm(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(tensors)))
