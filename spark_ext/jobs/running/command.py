"""End a job's command line with an exit code, and after any error with one line on standard error."""

import re
import sys
from collections.abc import Sequence

import click
from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it has no types
from pyspark.errors import PySparkException

from milena.errors import BadCredentialsError
from milena.model.errors import MilenaError
from spark_ext.errors import DataLossError
from spark_ext.jobs.running.errors import ACCEPT_LOSS, EXIT_BAD_DATA, EXIT_FAILED, JobError

EXIT_USAGE = 64
EXIT_INTERRUPTED = 130


def run_command(command: click.Command, name: str, arguments: Sequence[str] | None) -> int:
    """Run one command line; return its exit code."""
    try:
        result = command.main(
            args=None if arguments is None else list(arguments),
            prog_name=name,
            standalone_mode=False,
        )
    except BadCredentialsError as error:
        return _failed(name, error.message, EXIT_USAGE)
    except MilenaError as error:
        # Other errors come from the client, or from the file system: a full or failing disk.
        told, exit_code = _failure(error.message)
        return _failed(name, told, error.exit_code if isinstance(error, JobError) else exit_code)
    except (PySparkException, Py4JError) as error:
        return _failed(name, *_failure(spark_message(error)))
    except click.ClickException as error:
        error.show()
        return EXIT_USAGE
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    return result if isinstance(result, int) else 0


def spark_message(error: PySparkException | Py4JError) -> str:
    """Return Spark's message in one line without the Java stack: its sentence, and the last cause of a traceback."""
    text = re.split(r"JVM stacktrace:|\n\s+at ", str(error))[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    first, last = lines[0], lines[-1]
    return first if first == last else f"{first} {last}"


def _failure(message: str) -> tuple[str, int]:
    """Return the message in the words of the command line, and the exit code."""
    if DataLossError.ADVICE not in message:
        return message, EXIT_FAILED
    return message.replace(DataLossError.ADVICE, ACCEPT_LOSS), EXIT_BAD_DATA


def _failed(name: str, message: str, exit_code: int) -> int:
    print(f"{name}: {message}", file=sys.stderr)
    return exit_code
