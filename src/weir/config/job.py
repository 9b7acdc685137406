"""All that an attempt needs to know besides its plan."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from weir.config.checkpoints import Checkpoints
from weir.config.checks import check_booleans
from weir.config.restart import NoRestart, Restart
from weir.config.settings import Settings
from weir.errors import ConfigError
from weir.ids import CheckpointId, Lineage


@dataclass(frozen=True)
class JobConfig:
    """All that an attempt needs to know besides its plan."""

    name: str
    checkpoints: Checkpoints | None = None
    restart: Restart = field(default_factory=NoRestart)
    settings: Settings = field(default_factory=Settings)
    resume: bool = False
    back_to: CheckpointId | None = None
    """With `resume`: the checkpoint to go back to, whatever is newer."""
    back_to_lineage: Lineage | None = None
    """… and its lineage, where the user has named that, too."""
    from_savepoint: str | None = field(default=None, repr=False)
    """Where to start from as long as there is no checkpoint of its own: a savepoint, or a checkpoint of another run."""
    allow_dropped_state: bool = False
    """State of operators that are no longer there may be left out when a checkpoint is restored."""

    @property
    def is_at_most_once(self) -> bool:
        """After a failure the state is lost, and sources go on behind all that they had handed out."""
        checkpoints = self.checkpoints
        if checkpoints is None or checkpoints.mode != "none" or checkpoints.on_restart != "continue":
            return False
        return not isinstance(self.restart, NoRestart)

    def __post_init__(self) -> None:
        check_booleans(self, "resume", "allow_dropped_state")
        if not self.name:
            raise ConfigError("the name of a job is an empty text; give it one, or None for that of the Environment")
        if self.from_savepoint is not None and not os.fspath(self.from_savepoint).strip():
            raise ConfigError("from_savepoint (--from) is an empty text; give a location, or None to start anew")
