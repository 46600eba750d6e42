"""The errors of jobs: each has one sentence for people and an exit code for programs.

    JobError
    ├── LostRecordsError     1  records are gone, or were not all delivered
    ├── DamagedArchiveError  1  files and manifest do not agree
    ├── ArchiveBusyError     3  another run works on the archive
    └── JobInputError        4  no such topic, not an archive, another cluster's archive

The other codes are those of the command ``milena``: 0 done, 2 the cluster could not be reached or Spark failed, 64 the
command line is wrong, 130 interrupted.
"""

from typing import ClassVar

from milena.model.errors import MilenaError

ACCEPT_LOSS = "--accept-data-loss goes on without them"

EXIT_GOOD, EXIT_BAD_DATA, EXIT_FAILED, EXIT_BUSY, EXIT_BAD_INPUT = 0, 1, 2, 3, 4


class JobError(MilenaError, code="job"):
    """The base class of the errors; only its subclasses are raised."""

    exit_code: ClassVar[int] = EXIT_FAILED


class LostRecordsError(JobError, code="data_loss"):
    """Records that should have been archived are gone, or the source left some out."""

    exit_code = EXIT_BAD_DATA


class DamagedArchiveError(JobError, code="damaged_archive"):
    """The manifest cannot be trusted, or a file is not what the manifest says."""

    exit_code = EXIT_BAD_DATA


class JobInputError(JobError, code="job_input"):
    """The job cannot do what was asked for; the message says what to change."""

    exit_code = EXIT_BAD_INPUT


class ArchiveBusyError(JobError, code="archive_busy"):
    """Another run holds the archive's lock."""

    exit_code = EXIT_BUSY
