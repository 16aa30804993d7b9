"""How many samples an RLVR run needs, how many it has before collapse, and the schedule that follows.

Exit codes: 0 done; 1 the input is sound but gives no answer (a clock unidentified or contradicted, a target never reached, a question
outside the fitted range); 2 the input breaks a rule, and the message names it.
"""

from __future__ import annotations

import sys

import typer

from twoclocks import __version__
from twoclocks.cli import clocks, logs, schedules, watching
from twoclocks.cli.show import line
from twoclocks.errors import ExtrapolationError, MisfitError, NeverReachedError, TwoclocksError, UnidentifiedError

NO_ANSWER = (UnidentifiedError, MisfitError, NeverReachedError, ExtrapolationError)

app = typer.Typer(no_args_is_help=True, help=__doc__, pretty_exceptions_enable=False, rich_markup_mode=None)
app.command(epilog="Example: twoclocks check grpo.yaml --schedule schedule.json --prompts 7500")(logs.check)
app.command(name="import", epilog="Example: twoclocks import outputs --set completions=256 --set group=8 --out records")(logs.import_logs)
app.command(name="fit", epilog="Example: twoclocks fit outputs --settings runs.csv --metric reward --target 0.4")(clocks.fit_clocks)
app.command(name="plan", epilog="Example: twoclocks plan records --metric reward --target 0.4 --samples 200000 --out schedule.json")(clocks.plan_schedule)
app.command(name="plot", epilog="Example: twoclocks plot records --metric reward --target 0.4 --schedule schedule.json --out clocks.png")(clocks.plot_clocks)
app.command(name="show", epilog="Example: twoclocks show schedule.json")(schedules.show_schedule)
app.command(name="export", epilog="Example: twoclocks export schedule.json --to verl")(schedules.export_schedule)
app.command(name="watch", epilog="Example: twoclocks watch outputs/run --schedule schedule.json --set group=8")(watching.watch)


@app.command()
def version() -> None:
    """Print the version."""
    line(__version__)


def main() -> None:
    """Console entry point."""
    try:
        app()
    except TwoclocksError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(1 if isinstance(error, NO_ANSWER) else 2)
