"""Every error that a user can see. `VimeError.exit_code` is the exit status of the command line."""

from __future__ import annotations


class VimeError(Exception):
    """Base of all errors that are told in one line: what, where, and what to do."""

    exit_code = 1


class UserError(VimeError):
    """The user can mend it: wrong input, configuration or installation."""

    exit_code = 2


class ConfigError(UserError):
    """A key, a value or a combination in the configuration is wrong."""


class PluginError(UserError):
    """A selected plugin or component cannot be used."""


class DataError(UserError):
    """A data file or a row of it is wrong."""


class ModelError(UserError):
    """A model folder is incomplete or does not fit its configuration."""


class RunFolderError(UserError):
    """A run folder or a checkpoint is missing, incomplete or does not fit."""


class ResourceError(UserError):
    """The machine lacks what the run needs: devices, memory, ports, shared memory."""


class DeadlineError(VimeError):
    """Something did not answer in time."""


class EngineError(VimeError):
    """A rollout engine or the router failed."""


class TrainerError(VimeError):
    """A training rank failed."""


class KeeperError(VimeError):
    """The keeper, which ends what a run leaves behind, failed."""


class SyncError(VimeError):
    """A weight push failed or left engines with wrong weights."""


class RewardError(VimeError):
    """Scoring failed more often than the run allows."""
