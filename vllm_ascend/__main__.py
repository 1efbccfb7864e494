# SPDX-License-Identifier: Apache-2.0
"""``python -m vllm_ascend``: the project's commands, each imported when it is asked for."""

from __future__ import annotations

import os
import signal
import sys

_EXIT_BAD_INPUT = 2
_EXIT_INTERRUPTED = 130
_INTERRUPTED = "interrupted: by the user"


def _end_at_once(*_: object) -> None:
    os.write(2, f"{_INTERRUPTED}\n".encode())
    os._exit(_EXIT_INTERRUPTED)


# Until a command is called there is nothing that an interrupt could leave half done.
if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _end_at_once)

import importlib
import importlib.util
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from vllm_ascend.releases import describe_supported

# Some need no vLLM, and must not import it: the overlay runs before anything is in its place.
COMMANDS = {
    "doctor": "vllm_ascend.doctor.cli:doctor",
    "overlay": "vllm_ascend.overlay.cli:app",
    "regress": "vllm_ascend_evaluation.regress.cli:regress",
    "replay": "vllm_ascend_evaluation.replay.cli:replay",
    "sweep": "vllm_ascend_evaluation.replay.curves.sweep:sweep",
    "traffic": "vllm_ascend_evaluation.replay.traffic:traffic",
    "memory-curve": "vllm_ascend_evaluation.replay.curves.memory:memory_curve",
    "calibrate": "vllm_ascend_evaluation.calibrate.cli:calibrate",
    "goodput": "vllm_ascend_evaluation.replay.curves.goodput:goodput",
    "prefix-curve": "vllm_ascend_evaluation.replay.curves.prefixes:prefix_curve",
    "relay": "vllm_ascend.kv_events.cli:relay",
    "npu-check": "vllm_ascend.npu_check.cli:npu_check",
    "port-report": "vllm_ascend_evaluation.port_report.cli:port_report",
    "tiny-model": "vllm_ascend_evaluation.models.tiny.cli:tiny_model",
}
# Measures and proves; it is in the same distribution, and the overlay leaves it out.
_EVALUATION = "vllm_ascend_evaluation"
# Those of the extra `evaluation`, and what of them every command needs.
_EXTRAS = ("aiohttp", "httpx", "matplotlib", "rich", "scipy", "typer")
_ALWAYS = ("rich", "typer")


def _what_lacks(error: ModuleNotFoundError, command: str) -> str:
    """Return what to do about a missing library; never a name that an index may give to others."""
    module = str(error.name).partition(".")[0]
    if module not in _EXTRAS:
        return (
            f"error: this command needs vLLM {describe_supported('or')} and what comes with it, "
            f"and this Python has no {module}: use the one that serves"
        )
    needed = f"error: this command needs {module}: pip install "
    if not COMMANDS.get(command, "").startswith(_EVALUATION):
        return needed + " ".join(sorted({module, *_ALWAYS}))
    return (
        f"{needed}{' '.join(_EXTRAS)}, or, in this project's own folder, pip install -e "
        "'.[evaluation]'"
    )


try:
    import typer
except ModuleNotFoundError as _error:
    print(_what_lacks(_error, sys.argv[1] if sys.argv[1:] else ""), file=sys.stderr)
    sys.exit(_EXIT_BAD_INPUT)

from vllm_ascend.command_line.bad_values import name_bad_values
from vllm_ascend.command_line.help_pages import HelpContext, use_whole_words


class _LazyCommands(typer.core.TyperGroup):
    context_class = HelpContext

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the commands that are there: over a checkout, those of the evaluation are not."""
        return [name for name, target in COMMANDS.items() if _exists(target.partition(":")[0])]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import a command; of one that lacks a library, return one that says so."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].partition(":")
        if not _exists(module):
            return use_whole_words(typer.main.get_command(_as_typer(cmd_name, _not_here(cmd_name))))
        try:
            command = getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as error:
            command = _unavailable(error)
        if not isinstance(command, typer.Typer):
            command = _as_typer(cmd_name, command)
        return name_bad_values(use_whole_words(typer.main.get_command(command)))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Import the command that is called; from here on it handles interrupts itself."""
        found = super().resolve_command(ctx, args)
        if signal.getsignal(signal.SIGINT) is _end_at_once:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return found

    def invoke(self, ctx: Any) -> Any:
        """Run a command; an interrupt, a file that cannot be used, or no library is one line."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            typer.echo(_INTERRUPTED, err=True)
            raise typer.Exit(_EXIT_INTERRUPTED) from error
        except BrokenPipeError:
            raise  # whoever read the output has enough: Click ends quietly
        except OSError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(_EXIT_BAD_INPUT) from error
        except ModuleNotFoundError as error:
            if _is_ours(error):
                raise
            typer.echo(_what_lacks(error, str(ctx.invoked_subcommand)), err=True)
            raise typer.Exit(_EXIT_BAD_INPUT) from error


def _exists(module: str) -> bool:
    """Whether a module is there; packages on the way to it are vllm-ascend's own over a checkout,
    import vLLM, and let it log in front of what a command says."""
    package, *names = module.split(".")
    spec = importlib.util.find_spec(package)
    folders = (spec and spec.submodule_search_locations) or ()
    return any(Path(folder, *names).with_suffix(".py").is_file() for folder in folders)


def _not_here(command: str) -> Any:
    """Return the command that says how to get one that the overlay leaves out."""

    def not_here() -> None:
        typer.echo(
            f"error: {command} is part of the package {_EVALUATION}, which is not installed here: "
            "run it in a clone of this project, after pip install -e '.[evaluation]'",
            err=True,
        )
        raise typer.Exit(_EXIT_BAD_INPUT)

    not_here.__doc__ = f"Not available: {_EVALUATION} is not installed here."
    return not_here


def _is_ours(error: ModuleNotFoundError) -> bool:
    return str(error.name).partition(".")[0] == "vllm_ascend"


def _unavailable(error: ModuleNotFoundError) -> Any:
    if _is_ours(error):
        raise error

    def unavailable() -> None:
        raise error

    unavailable.__doc__ = f"Not available: this Python has no {error.name}."
    return unavailable


def _as_typer(name: str, function: Any) -> typer.Typer:
    """Return a command; one that is not available takes every option that it would have."""
    lenient = function.__name__ in ("unavailable", "not_here")
    settings = {"allow_extra_args": lenient, "ignore_unknown_options": lenient}
    command = _typer()
    command.command(name, context_settings=settings)(function)
    return command


# No shell completes `python -m vllm_ascend`, so no command offers to install a completion.
_typer = partial(
    typer.Typer, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
)
app = _typer(
    cls=_LazyCommands,
    help=f"A prefix cache for DeepSeek-V4 on Ascend, on unmodified vLLM {describe_supported()}.",
    no_args_is_help=True,
)


def _print_versions(asked: bool) -> None:
    if not asked:
        return
    from vllm_ascend.doctor.versions import own_versions

    for version in own_versions():
        where = f" ({version.origin})" if version.origin else ""
        typer.echo(f"{version.name} {version.version or 'not found'}{where}")
    raise typer.Exit


@app.callback()
def _commands(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Show our version and vLLM's.",
            is_eager=True,
            callback=_print_versions,
        ),
    ] = False,
) -> None:
    """A group has to have a function."""


def main() -> None:
    """Run the command that the command line names."""
    try:
        app(prog_name="python -m vllm_ascend")
    finally:
        # All is said: an impatient Ctrl-C while Python shuts down must not change the exit code.
        signal.signal(signal.SIGINT, signal.SIG_IGN)


if __name__ == "__main__":
    main()
