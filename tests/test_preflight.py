import pytest

from twoclocks import preflight
from twoclocks import schedule as schedules
from twoclocks.errors import SettingError
from twoclocks.schedule import Schedule, Stage
from twoclocks.setting import Setting

QUIET = {"logging_nan_inf_filter": False}
SETTING = Setting(batch=32, lr=2e-6, group=8, updates_per_rollout=4)


def check(fields, *args, **kwargs):
    return preflight.check(QUIET | fields, *args, **kwargs)


def layout(m, gas, spg, mu=1, group=4):
    return {"per_device_train_batch_size": m, "gradient_accumulation_steps": gas, "steps_per_generation": spg, "num_iterations": mu, "num_generations": group}


def test_a_plain_configuration_in_words():
    report = check(layout(4, 2, 4, group=4), prompts=10)
    assert not report.problems
    assert report.words == [
        "8 completions per optimizer update (4 a process and micro-batch x 1 processes x 2 accumulated)",
        "16 completions per rollout: 4 prompts x 4",
        "2 optimizer updates per rollout: 1 of them off-policy",
        "a pass over 10 prompts is 2 rollouts and 4 updates (prompts x num_generations x num_iterations / batch)",
        "12 updates in all",
    ]
    assert report.warnings == ["2 of 10 prompts fill no rollout and are dropped in every pass"]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (layout(4, 4, 2, mu=2), "counted 2 times within one update"),
        (layout(6, 1, 1, group=4), "not a whole number of groups of 4; nearest rollouts: 12 (steps_per_generation 2)"),
        (layout(4, 1, 1, group=1), "at least 2 completions"),
        ({"per_device_train_batch_size": 4, "generation_batch_size": 18, "num_generations": 2}, "nearest: 16 or 20"),
        ({"per_device_train_batch_size": 8, "steps_per_generation": 2, "generation_batch_size": 32}, "both set and disagree"),
        ({"use_vllm": True, "top_p": 0.9}, "biases the ratio"),
        ({"auto_find_batch_size": True}, "lower per_device_train_batch_size"),
        ({"warmup_ratio": 0.1}, "gone in transformers 5"),
        ({"use_transformers_continuous_batching": True}, "set bf16=False"),
    ],
)
def test_what_would_go_wrong_in_silence_is_refused(fields, says):
    report = check(fields)
    assert any(says in problem for problem in report.problems), report.problems
    with pytest.raises(SettingError):
        preflight.require_legal(fields)


def test_too_few_prompts_would_be_no_training_at_all():
    report = check(layout(8, 2, 4, group=4), prompts=5)
    assert "TRL would make 0 updates and exit with success; use at least 8 prompts, or a rollout of at most 5 prompts" in report.problems[0]
    assert "fewer than the 16 of one rollout" in check({"per_device_train_batch_size": 32}, schedules.constant(SETTING, 512), prompts=15).problems[0]


def test_legal_but_likely_not_meant():
    assert "straddle rollouts" in check(layout(4, 3, 4)).warnings[0]
    assert "the last update of every pass has 2 instead of 4" in " ".join(check(layout(4, 4, 2), prompts=10).warnings)
    assert "on-policy: the ratio is 1 by construction" in " ".join(check(layout(4, 4, 2)).words)
    assert "diverged run looks healthy" in preflight.check({}).warnings[0]
    assert "another gradient in another layout" in check({"loss_type": "bnpo"}).warnings[0]


def test_a_scheduled_run_in_words():
    made = Schedule((Stage(SETTING, 200), Stage(SETTING.scaled(64), 600)))
    report = check({"per_device_train_batch_size": 16, "num_generations": 8}, made, prompts=64, processes=2)
    assert not report.problems
    assert report.words[0].startswith("from 0 completions (update 0): 32 completions per update, 4 updates per rollout of 128 completions (16 prompts x 8)")
    assert report.words[1].startswith("from 256 completions (update 8): 64 completions per update")
    assert "16 updates, 4 rollouts, 768 completions trained" in report.words[2]
    assert "the switch planned at 200 completions takes place at 256" in report.warnings[0]
    assert "the last 32 completions of the schedule hold no whole update" in report.warnings[1]


def test_batches_that_do_not_fit_come_with_those_that_do():
    (problem,) = check({"per_device_train_batch_size": 12}, schedules.constant(SETTING, 512), processes=2).problems
    assert "stage 0: batch 32 is not a multiple of per_device_train_batch_size x processes = 24; nearest batches: 24 or 48" in problem
    assert "may be one of 1, 2, 4, 8, 16" in problem


def test_evaluation_batches_are_whole_groups():
    made = schedules.constant(SETTING, 512)
    (problem,) = check({"per_device_train_batch_size": 8, "eval_strategy": "steps", "per_device_eval_batch_size": 12}, made).problems
    assert "12 completions is not a whole number of groups of 8; nearest: 8 or 16" in problem
    assert not check({"per_device_train_batch_size": 8, "eval_strategy": "steps", "per_device_eval_batch_size": 12, "num_generations_eval": 4}, made).problems


def test_fields_the_schedule_owns_may_agree_and_not_differ():
    made = schedules.constant(SETTING, 512)
    assert not check(SETTING.to_trl(per_device=8), made).problems
    for name, value in (("learning_rate", 1e-5), ("max_steps", 3), ("epsilon", 0.1), ("num_train_epochs", 2), ("warmup_steps", 5)):
        (problem,) = check({"per_device_train_batch_size": 8, name: value}, made).problems
        assert problem.startswith(f"{name}={value} is the schedule's to set")


def test_configs_are_read_without_running_anything(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("learning_rate: 2e-6\nper_device_train_batch_size: '8'\nsteps_per_generation: 4\n")
    assert preflight.read_config(path) == {"learning_rate": 2e-6, "per_device_train_batch_size": 8, "steps_per_generation": 4}
    for text, says in (
        ("- 1\n", "expected a mapping"),
        ("learning_rate: ${oc.env:HOME}\n", "interpolations"),
        ("model: {_target_: os.system}\n", "_target_"),
        ("learning_rate: fast\n", "learning_rate='fast' is not a number"),
        ("a: [1\n", "not readable"),
        ("a: !!python/object/apply:os.system ['true']\n", "not readable"),
    ):
        path.write_text(text)
        with pytest.raises(SettingError, match=says):
            preflight.read_config(path)
    with pytest.raises(SettingError, match="no such file"):
        preflight.read_config(tmp_path / "absent.yaml")


def test_defaults_are_those_of_the_installed_trl(tmp_path):
    from trl import GRPOConfig

    made = GRPOConfig(str(tmp_path), use_cpu=True, bf16=False)
    filled_in = {"steps_per_generation", "generation_batch_size", "warmup_ratio", "bf16"}
    for name, value in preflight.DEFAULTS.items():
        if name not in filled_in:
            assert getattr(getattr(made, name), "value", getattr(made, name)) == value, name
