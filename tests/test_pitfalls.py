"""Where people using TRL's GRPO lost a run in silence (issue threads named), and what the package does about each.

| thread | answered by |
|---|---|
| trl#2858, #2876, #3061: batch not divisible by the group | test_preflight (nearest legal rollouts) |
| unsloth#3838: a batch raised without a word | test_scheduled (the user's arguments stay; disagreement is refused by name) |
| trl#3442, #3204, open-r1#483: number of steps is a surprise | test_preflight (updates = prompts x group x iterations / batch, in words) |
| trl#4004: two x axes | here: every row carries the sample clock |
| trl#3532, #3675, #4271, #3662: does the sampler repeat? | test_scheduled (prompt order; a group is consecutive, a pass holds all) |
| trl#3120, #3757, #2769, #3294: clip ratio 0 for ever | test_preflight ("on-policy by construction"), test_scheduled (old log-probabilities always) |
| trl#2703, #3452, open-r1#239: the loss says nothing | here: no clock can be fitted on it |
| trl#5619, PR#6024: step scaled by accumulation over rollout | test_scheduled (gradient of the whole batch), here: the TRL version |
| trl#3021: accumulation changes the result | test_preflight (bnpo is named), test_scheduled (layouts agree) |
| trl#6369: truncated completions in the denominator | here: the TRL version |
| transformers#31222, accelerate#1360: no batch schedule | test_scheduled |
| transformers#43708, #27749, #34053, trl PR#3148, open-r1#450, trl#3179: resume | test_resume (same bits, rates and prompts) |
| transformers#30038, #29270: tensors in the logs | here: the history is JSON |
| trl#2980 and others: which signal moved first | test_drift_meter (drift, ratios by sign), here: rewards without variance |
| trl#4772, #6789, PR#5815: importance weights biased under top_p | test_preflight |
| open-instruct PR#642: dead groups | here: the effective batch |
| review of trl PR#6613: completions overwritten by evaluation | here: a warning |
| trainers.md 1.7: too few prompts, beta without a path, NaN filter, warmup_ratio, in-place casts | test_preflight, test_scheduled |
"""

import json
import re
from pathlib import Path

import pytest

from tests import trainers as rig
from twoclocks import preflight, schema
from twoclocks import schedule as schedules
from twoclocks.trainers import ScheduledGRPOTrainer

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    made = rig.trainer(
        ScheduledGRPOTrainer, tmp_path_factory.mktemp("run"), schedule=schedules.constant(rig.setting(16), 96),
        fields={"per_device_train_batch_size": 4, "num_generations": 4},
    )  # fmt: skip
    made.train()
    return [row for row in made.state.log_history if "train_runtime" not in row]


def test_every_row_carries_the_sample_clock(run):
    assert [row["twoclocks/samples"] for row in run] == [16, 32, 48, 64, 80, 96]


def test_the_history_is_plain_json(run):
    assert json.loads(json.dumps(run)) == run


def test_no_clock_is_fitted_on_the_loss():
    assert "loss" not in {c.name for c in schema.CURVE_COLUMNS}


def test_dead_groups_shrink_the_batch_that_is_reported(run):
    for row in run:
        if "frac_reward_zero_std" in row:
            assert row["twoclocks/batch_effective"] == pytest.approx(16 * (1 - row["frac_reward_zero_std"]))
    assert any("twoclocks/batch_effective" in row for row in run)


def test_trl_is_new_enough_to_scale_the_loss_right():
    """1.9.1 scales dapo by the window; truncated completions left the denominator later. The extra asks for 1.16."""
    assert re.search(r'"trl>=1\.(1[6-9]|[2-9]\d)', (ROOT / "pyproject.toml").read_text())


def test_completions_overwritten_by_an_evaluation_are_warned_of():
    report = preflight.check({"logging_nan_inf_filter": False, "log_completions": True, "eval_strategy": "steps"})
    assert "overwrites that step's completions file" in report.warnings[0]
    assert "caps the ratio itself" in preflight.check({"logging_nan_inf_filter": False, "loss_type": "cispo"}).warnings[0]


def test_accelerate_reads_the_shipped_configurations():
    from accelerate.commands.config.config_args import load_config_from_file

    found = {path.stem: load_config_from_file(str(path)) for path in (ROOT / "experiments/conf/accelerate").glob("*.yaml")}
    assert sorted(found) == ["ddp", "ddp_cpu", "fsdp2", "zero2", "zero3"]
    assert str(found["fsdp2"].distributed_type).endswith("FSDP") and found["fsdp2"].fsdp_config["fsdp_version"] == 2
    assert all(found[z].deepspeed_config["gradient_accumulation_steps"] == 1 for z in ("zero2", "zero3"))
