"""Who leads the pickers of a pool: the one whose tuner and learner work for all.

Owns the term and the leader's name, as one picker knows them. Pure: times and messages come in.

Rules
- Terms only rise, by `TERM_STEP` at most: another leader is taken with a higher term alone, so that no picker
  obeys two.
- A leader stays until it is silent. Then the first by name of those heard takes the lead, with the next term.
- Where Kubernetes has a Lease, who holds it takes the lead, whatever its name, and nobody else leads.
- Who has not listened for `LISTEN_S`, or has lost NATS, neither leads nor takes the lead.
- After a split the higher term wins. Two that took the same one: the first of them takes the next.
"""

from __future__ import annotations

from collections import deque

from epp.cluster.messages import Lead

#: Silence after which a picker is gone, longer than `epp.cluster.index_sync.SILENT_S`, for leads are dear.
LOST_S = 4.0
#: As long as the leader takes to send its files again, and a second more.
LISTEN_S = 6.0
#: A leader takes the next term; who was away, or has just started, may have missed two years of one a minute.
TERM_STEP = 2**20
#: Clocks are compared over so many messages: one may have come late.
_COMPARED = 3


class Leading:
    """What one picker knows of the lead.

    Args:
        name: of this process.
        now_s: the time.
        term: the highest of an earlier life.

    Attributes:
        leader: name of the one that leads, empty before one is known.
        term: its term.
        lease: whether this picker holds the Lease; None where there is none.
    """

    def __init__(self, name: str, now_s: float, term: int = 0) -> None:
        self.name, self.leader, self.term = name, "", term
        self._highest = term
        self._heard_s: dict[str, float] = {}
        self._ahead_s: dict[str, deque[float]] = {}
        self._since_s = now_s
        self._listened = self._resigned = False
        self.lease: bool | None = None

    @property
    def leads(self) -> bool:
        """Whether this picker leads."""
        return self.leader == self.name and self.able and self.lease is not False

    @property
    def able(self) -> bool:
        """Whether this picker has listened, and stays."""
        return self._listened and not self._resigned

    def resign(self) -> None:
        """Leave the lead to others from now on."""
        self._resigned = True

    @property
    def follows(self) -> bool:
        """Whether another one leads."""
        return self.leader not in ("", self.name)

    @property
    def skew_s(self) -> float:
        """By how much the clock of another picker differs most from this one's."""
        return max((min(map(abs, ahead_s)) for ahead_s in self._ahead_s.values()), default=0.0)

    def tick(self, now_s: float, *, connected: bool) -> None:
        """Let time pass; call it every second.

        Args:
            now_s: the time.
            connected: whether the others can be heard.
        """
        if not connected:
            self._since_s = now_s
        self._listened = now_s - self._since_s >= LISTEN_S
        for name in [name for name, heard_s in self._heard_s.items() if now_s - heard_s >= LOST_S]:
            self.left(name)
        vacant = self.leader not in self._heard_s and all(self.name < name for name in self._heard_s)
        if self.able and self.leader != self.name and (vacant if self.lease is None else self.lease):
            self._take()

    def hear(self, origin: str, lead: Lead, now_s: float, now_wall_s: float) -> bool:
        """Take what another picker says of the lead; False, and nothing, where its term cannot be."""
        if lead.term > self._highest + TERM_STEP:
            return False
        self._heard_s[origin] = now_s
        self._ahead_s.setdefault(origin, deque(maxlen=_COMPARED)).append(lead.wall_s - now_wall_s)
        self._highest = max(self._highest, lead.term)
        newer = lead.term > self.term
        if lead.leader and (newer or (not self.leader and lead.term == self.term)):
            self.term, self.leader = lead.term, lead.leader
            self._heard_s.setdefault(lead.leader, now_s)
        elif self.leader == self.name and self.lease is not False and (newer or self._yields(lead)):
            self._take()  # newer without a leader: it remembers an earlier life of the pool
        return True

    def _yields(self, lead: Lead) -> bool:
        """Tell whether another took the same term and is later by name, gone, or without the Lease."""
        if lead.term < self.term or lead.leader in ("", self.name):
            return False
        return bool(self.lease) or self.name < lead.leader or lead.leader not in self._heard_s

    def left(self, origin: str) -> None:
        """Forget a picker that has ended."""
        self._heard_s.pop(origin, None)
        self._ahead_s.pop(origin, None)

    def accepts(self, lead: Lead) -> bool:
        """Tell whether what comes with this lead is to be obeyed."""
        return self.follows and (lead.term, lead.leader) == (self.term, self.leader)

    def said(self, now_wall_s: float) -> Lead | None:
        """Return what this picker says of the lead; None of one that has resigned."""
        return None if self._resigned else Lead(self.term, self.leader, now_wall_s)

    def _take(self) -> None:
        self._highest += 1
        self.term, self.leader = self._highest, self.name
