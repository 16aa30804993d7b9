import re
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEAVY = {"torch", "transformers", "trl", "hydra", "sympy", "matplotlib"}
LIGHT = f"import twoclocks, twoclocks.cli, sys; loaded = {HEAVY} & set(sys.modules); assert not loaded, loaded; print(twoclocks.__file__)"


def test_the_core_loads_no_heavy_package():
    subprocess.run([sys.executable, "-c", LIGHT], check=True, capture_output=True)


def test_the_bare_wheel_holds_the_library_alone_and_works(tmp_path):
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, check=True, capture_output=True, cwd=ROOT)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
        assert {t for t in tops if not t.endswith(".dist-info")} == {"twoclocks"}
        assert "twoclocks/py.typed" in archive.namelist()
        archive.extractall(tmp_path / "site")
    # Heavy packages cannot be found, as where only the core is installed
    blocker = f"""
import importlib.abc, sys
class Hide(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {HEAVY}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Hide())
"""
    code = blocker + LIGHT
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path / "site")})
    assert str(tmp_path) in done.stdout


def test_tests_cannot_reach_beyond_loopback():
    with pytest.raises(PermissionError, match="may not reach"), socket.socket() as connection:
        connection.connect(("203.0.113.1", 80))
    with socket.socket() as server, socket.socket() as client:
        server.bind(("127.0.0.1", 0))
        server.listen(1)
        client.connect(server.getsockname())


def test_constraints_pin_what_pyproject_asks_for():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["trl"], *extras["plot"], *extras["all"], *extras["dev"]]
    names = {re.split(r"[\[<>=;~! ]", requirement)[0].lower() for requirement in wanted} - {"twoclocks"}
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    assert names <= pinned, names - pinned


def test_make_help_lists_every_target():
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, flags=re.M))
    shown = subprocess.run(["make", "-s", "--no-print-directory", "help"], capture_output=True, text=True, cwd=ROOT, check=True).stdout
    assert {line.split()[0] for line in shown.splitlines()} == targets


def test_readme_commands_exist():
    readme = (ROOT / "README.md").read_text()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    assert set(re.findall(r"`make ([a-z-]+)", readme)) <= targets
    for module in re.findall(r"python -m ([a-z.]+)", readme):
        parts = ROOT / module.replace(".", "/")
        assert parts.with_suffix(".py").exists() or (parts / "__main__.py").exists(), module
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", readme):
        assert (ROOT / link).exists(), link


def test_the_readme_example_runs_as_written(tmp_path, monkeypatch, capsys):
    readme = (ROOT / "README.md").read_text()
    code, _ = re.findall(r"```python\n(.*?)```", readme, flags=re.S)
    monkeypatch.chdir(tmp_path)
    for here, there in (("experiments/results", str(ROOT / "experiments/results")), ("target=0.22", "target=0.22, n_boot=5")):
        assert here in code
        code = code.replace(here, there)
    exec(code, {})
    assert "one constant setting" in capsys.readouterr().out
    assert (tmp_path / "schedule.json").exists()


def test_the_readme_trainer_runs_as_written(tmp_path, monkeypatch):
    """With mini for the hub's model, on the CPU, and what the example takes as the reader's own."""
    from datasets import Dataset

    from twoclocks import Setting
    from twoclocks import schedule as schedules

    _, code = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.S)
    monkeypatch.chdir(tmp_path)
    schedules.sqrt_switch(Setting(batch=8, lr=1e-6, updates_per_rollout=2), 16, 16, 48).save("schedule.json")
    for here, there in (
        ('"Qwen/Qwen2.5-0.5B-Instruct"', repr(str(ROOT / "experiments/models/mini"))),
        ("save_steps=50", "save_steps=50, use_cpu=True, bf16=False, max_completion_length=4, report_to=[]"),
    ):
        assert here in code
        code = code.replace(here, there)
    own = {"reward": lambda completions, **_: [float(len(c)) for c in completions], "dataset": Dataset.from_list([{"prompt": f"{i}+1="} for i in range(32)])}
    exec(code, own)
    assert own["trainer"].samples == 48
