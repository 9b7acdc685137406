"""How far groups of sources have come that are to stay close to each other in event time.

Comes in: the watermark of each member, or that it is idle or has ended. Goes out: the
time of the slowest member of each group, ahead of which the others wait. Never touches
rows, clocks or sources.

Laws:
  1. As long as a member has said nothing, nothing is known of its group, and nobody in it
     has to wait because of what is not known.
  2. A member that is idle or has ended does not count; where none counts, nobody waits.
  3. A member that has no watermark yet counts: the others wait for its first.
  4. The slowest may come later than before, or earlier: an idle member may resume behind,
     and after a restore all begin again where the checkpoint was.
  5. A member never waits for itself: the slowest that counts can always go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from weir.errors import ProtocolViolation
from weir.ids import SubtaskId
from weir.snapshot.watermarks import END_US, NEVER_US


class WatermarkGroups:
    """The groups of one job. `members`: each source subtask that is in one, with its group's name."""

    def __init__(self, members: Mapping[SubtaskId, str]) -> None:
        self._group_of = dict(members)
        self._at: dict[str, dict[SubtaskId, int]] = {group: {} for group in members.values()}
        self._sizes = {group: list(members.values()).count(group) for group in members.values()}

    def reached(self, member: SubtaskId, time_us: int | None) -> None:
        """A member's watermark; None: it is idle, or has ended."""
        group = self._group_of.get(member)
        if group is None:
            raise ProtocolViolation(f"watermark groups: {member} is in none")
        self._at[group][member] = END_US if time_us is None else time_us

    def forget(self, members: Iterable[SubtaskId]) -> None:
        """They begin again, and where is not known yet."""
        for member in members:
            if (group := self._group_of.get(member)) is not None:
                self._at[group].pop(member, None)

    @property
    def slowest_us(self) -> dict[str, int]:
        """By group, of those of which all members are known; END_US where none counts."""
        return {group: min(at.values()) for group, at in self._at.items() if len(at) == self._sizes[group]}


def limit_us(slowest_us: int, drift_us: int) -> int:
    """How far a member may come whose group is there: behind it, it waits."""
    if slowest_us in (NEVER_US, END_US):
        return slowest_us
    return min(slowest_us + drift_us, END_US)
