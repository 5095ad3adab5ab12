"""The command `txsink`: options in, a report out, as text or JSON. The only printer.

Promises: `--output json` prints one object on stdout (an error: one on stderr), whose keys docs/cli.md lists; exit
codes 0 done, 1 error, 2 usage, 3 unhealthy; whatever a name holds, only printable characters reach the terminal, and
no colours reach what is not a terminal.
Relies on: click and rich, the extra `cli`, imported when a command runs; `commands` for everything else.
Does not promise: the form of the text. Programs read the JSON.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from txsink import __version__
from txsink.choices import Layout, OnNewer, values_of
from txsink.cli import commands, commands_repair
from txsink.cli.commands import Grid, Report
from txsink.errors import TxsinkError
from txsink.paths import VERSION_MAX

if TYPE_CHECKING:
    import click

ERROR = 1
_LOG_LIMIT = 50
_WIDE = 1 << 16  # columns: what is no terminal gets every row on one line, for grep


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    try:
        import click  # noqa: PLC0415 -- an extra: the library works without it
        import rich  # noqa: F401, PLC0415
    except ModuleNotFoundError as error:
        _line(f"error: run txsink\nfound: {error}\ndo: pip install 'txsink[cli]'")
        return ERROR
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        return int(_group().main(arguments, prog_name="txsink", standalone_mode=False) or 0)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return ERROR


# -- the commands -------------------------------------------------------------------------------------


def _group() -> click.Group:
    """Every command with its options."""
    import click  # noqa: PLC0415

    epoch = click.IntRange(0, VERSION_MAX)
    writer = click.Option(["--writer"], metavar="WRITER", help="Only this writer.")
    yes = click.Option(["--yes"], is_flag=True, help="Do it. Without it the command only says what it would do.")
    group = click.Group("txsink", help="Look at a txsink table; finish or drop what a crash left.")
    click.version_option(__version__)(group)
    group.params.append(click.Option(["--traceback", "show_traceback"], is_flag=True, hidden=True))
    group.callback = lambda **_: None  # the commands look the option up when something fails
    for run, *params in (
        (commands.status,),
        (
            commands.log,
            click.Option(
                ["--limit"],
                type=click.IntRange(0),
                default=_LOG_LIMIT,
                show_default=True,
                help="How many entries; 0: all.",
            ),
        ),
        (commands.files, click.Option(["--version"], type=int, help="At an older version.")),
        (commands.pending,),
        (
            commands.recover,
            writer,
            click.Option(["--up-to"], type=epoch, help="Commit epochs up to this one, abort those above."),
            click.Option(
                ["--on-newer"],
                type=click.Choice(values_of(OnNewer)),
                default="fail",
                show_default=True,
                help="When epochs above --up-to are committed already: fail, skip them (they stay) or rewind them.",
            ),
            yes,
        ),
        (commands.abort, click.Argument(["writer"]), click.Argument(["epoch"], type=epoch), yes),
        (commands.sweep, writer, yes),
        (commands.verify, click.Option(["--deep"], is_flag=True, help="Read every page and count the rows.")),
        (commands_repair.repair, yes),
        (commands.checkpoint,),
        (
            commands.convert,
            click.Option(["--to"], type=click.Choice(values_of(Layout)), required=True, help="The layout."),
            yes,
        ),
        (commands.explain, click.Argument(["writer"]), click.Argument(["epoch"], type=epoch)),
    ):
        group.add_command(_command(run, params))
    return group


def _command(run: Callable[..., Report], params: list[Any]) -> click.Command:
    import click  # noqa: PLC0415

    output = click.Option(
        ["--output"], type=click.Choice(["text", "json"]), default="text", show_default=True, help="For whom."
    )
    return click.Command(
        run.__name__,
        params=[click.Argument(["path"]), *params, output],
        callback=lambda output, **options: _run(run, options, output),
        help=run.__doc__,
    )


def _run(run: Callable[..., Report], options: dict[str, Any], output: str) -> int:
    """Do one command and print what came of it; the exit code."""
    import click  # noqa: PLC0415

    show_traceback = click.get_current_context().find_root().params["show_traceback"]
    try:
        report = run(**options)
    except commands.UsageError as error:
        raise click.UsageError(str(error)) from error
    except TxsinkError as error:
        if show_traceback:
            traceback.print_exc()
        _print_error(error, output)
        return ERROR
    if output == "json":
        click.echo(_json(report.data))
    else:
        _print_text(report)
    return report.code


# -- printing -----------------------------------------------------------------------------------------


def printable(text: object) -> str:
    """Text without anything a terminal would act on."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "backslashreplace").decode() for char in str(text)
    )


def _json(data: dict[str, Any]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(data, enc_hook=str), indent=2)


def _print_error(error: TxsinkError, output: str) -> None:
    if output == "json":
        told = {
            "kind": error.kind,
            "retryable": error.retryable,
            "attempted": error.attempted,
            "found": error.found,
            "do": error.advice,
            "context": {name: str(value) for name, value in error.context.items()},
        }
        _line(_json({"error": told}).decode())
    else:
        parts = (("error", error.attempted), ("found", error.found), ("do", error.advice))
        _line("\n".join(f"{name}: {printable(text)}" for name, text in parts))


def _line(text: str) -> None:
    encoding = sys.stderr.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), file=sys.stderr)


def _print_text(report: Report) -> None:
    from rich.console import Console  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    is_terminal = sys.stdout.isatty()
    console = Console(
        file=sys.stdout,
        force_terminal=is_terminal,
        no_color=not is_terminal,
        width=None if is_terminal else _WIDE,
        highlight=False,
        markup=False,
        emoji=False,
    )
    for part in report.text:
        if isinstance(part, str):
            console.print(Text(printable(part)), soft_wrap=True)
        elif part.rows:
            console.print(_table(part))


def _table(grid: Grid) -> Any:
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, header_style="bold", show_header=any(grid.heads))
    for index, head in enumerate(grid.heads):
        is_number = all(row[index] is None or isinstance(row[index], int) for row in grid.rows)
        table.add_column(Text(head), justify="right" if is_number else "left", overflow="fold")
    for row in grid.rows:
        table.add_row(*(Text("" if cell is None else printable(cell)) for cell in row))
    return table


if __name__ == "__main__":
    raise SystemExit(main())
