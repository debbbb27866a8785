"""Engine metrics from Prometheus exposition text: the dozen numbers wanted, out of thousands of lines.

Owns the finding and reading of lines; what they mean is `epp.signals.engine_sample`'s. A general parser
builds every histogram bucket of every family; this one looks at a line only when its first bytes name
something wanted. Text comes from the network: bytes and line length are bounded, whatever does not read is
skipped, and nothing raises.

An engine prints the same series in the same order each time, so `MetricsReader` looks for each line where it
was the last time and reads its number alone.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from epp.signals.engine_sample import EngineSample, Plan, number, wanted

if TYPE_CHECKING:
    from epp.signals.engine_sample import Labels

__all__ = ["EngineSample", "MetricsReader", "parse_metrics"]

#: Enough for the largest exposition of a large engine, several times over.
MAX_BYTES = 4 * 1024 * 1024
#: Longest line looked at; info metrics with a whole configuration in their labels take a few thousand.
MAX_LINE_BYTES = 16 * 1024
#: Series kept per name; an engine has a handful of ranks.
MAX_SERIES = 1024
#: Readings from memory between two that look at everything.
REMEMBERED_READINGS = 60

_LABEL = re.compile(rb'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*(,?)')


def _pattern(names: frozenset[bytes]) -> re.Pattern[bytes]:
    """Finds the lines of these names. Names are grouped by engine, so that a line is refused early."""
    groups: dict[bytes, list[bytes]] = {}
    for name in sorted(names):
        stem = re.split(rb"(?<=[:_])", name, maxsplit=1)[0]
        groups.setdefault(stem, []).append(re.escape(name[len(stem) :]))
    choice = b"|".join(re.escape(stem) + b"(?:" + b"|".join(rest) + b")" for stem, rest in groups.items())
    return re.compile(rb"\n[ \t]*(" + choice + rb")(?=[ \t{])")


# One pass of the pattern engine over the text finds the candidate lines; Python sees no others.
_FIND = _pattern(wanted())
#: No wanted line is shorter: a page that has grown by less has no further one.
_SHORTEST_LINE = min(map(len, wanted())) + len(b" 0\n")


class _Line(NamedTuple):
    """A line that reads: its series, where it begins (the line feed before it), and where its value does."""

    name: str
    labels: Labels
    begins: int
    value_begins: int
    ends: int


def parse_metrics(text: bytes) -> EngineSample:
    """Read the wanted numbers of an exposition (Prometheus text or OpenMetrics); never raises.

    Beyond `MAX_BYTES` the text is cut at the last full line; longer lines than `MAX_LINE_BYTES` are skipped.
    """
    return MetricsReader().read(text)


class MetricsReader:
    """Reads the expositions of one endpoint, one after the other; each as `parse_metrics` would.

    While a page has as many lines as the one before, or nearly as many bytes, and each wanted line begins as
    it did there and comes in the same order, only the numbers are read. A wanted series that takes the place
    of another line, or of a short one that had left before, is so noticed `REMEMBERED_READINGS` readings
    later at the latest: then everything is read.
    """

    def __init__(self) -> None:
        self._left = 0
        self._bytes = self._line_feeds = 0
        self._starts: list[bytes] = []
        self._places: list[int] = []
        self._values: list[bytes] = []
        self._plan = Plan(())
        self._sample = EngineSample()

    def read(self, text: bytes) -> EngineSample:
        """Read an exposition; never raises. Returns the same object again when no number has changed."""
        if len(text) > MAX_BYTES:
            text = text[: text.rfind(b"\n", 0, MAX_BYTES) + 1]
        text = b"\n" + text
        values = self._again(text)
        if values is None:
            values = self._anew(text)
        elif values == self._values:
            return self._sample
        self._values = values
        # A timestamp or an exemplar may follow.
        self._sample = self._plan.sample([number(value.split(None, 1)[0]) for value in values])
        return self._sample

    def _again(self, text: bytes) -> list[bytes] | None:
        """What follows the remembered series, None when the page is another than the one remembered."""
        self._left -= 1
        grown, self._bytes = abs(len(text) - self._bytes), len(text)
        if self._left < 0 or (grown >= _SHORTEST_LINE and text.count(b"\n") != self._line_feeds):
            return None
        values, shift, at = [], 0, 0
        for index, start in enumerate(self._starts):
            place = self._places[index]
            if place + shift < at or not text.startswith(start, place + shift):
                found = text.find(start, at)
                if found < 0:
                    return None
                shift = found - place
            self._places[index] = place + shift
            begins = place + shift + len(start)
            at = text.find(b"\n", begins)
            at = len(text) if at < 0 else at
            value = text[begins:at]
            if not value[:1].strip() or len(start) + len(value) > MAX_LINE_BYTES:
                return None
            values.append(value)
        return values

    def _anew(self, text: bytes) -> list[bytes]:
        """Look at every line, and remember where the wanted ones are; what follows their series."""
        lines, all_read = _lines(text)
        # One that does not read now may the next time.
        self._left, self._line_feeds = REMEMBERED_READINGS if all_read else 0, text.count(b"\n")
        self._starts = [text[line.begins : line.value_begins] for line in lines]
        self._places = [line.begins for line in lines]
        self._plan = Plan((line.name, line.labels) for line in lines)
        return [text[line.value_begins : line.ends] for line in lines]


def _lines(text: bytes) -> tuple[list[_Line], bool]:
    """The wanted lines that read, in order, and whether all do; ``text`` begins with a line feed."""
    lines, seen, all_read = [], dict[bytes, int](), True
    for match in _FIND.finditer(text):
        end = text.find(b"\n", match.end())
        end = len(text) if end < 0 else end
        count = seen.get(match[1], 0)
        found = None
        if end - match.start() <= MAX_LINE_BYTES and count < MAX_SERIES:
            found = _read(text[match.end() : end])
        if found is None:
            all_read = False
            continue
        seen[match[1]] = count + 1
        labels, length = found
        lines.append(_Line(match[1].decode(), labels, match.start(), match.end() + length, end))
    return lines, all_read


def _read(rest: bytes) -> tuple[Labels, int] | None:
    """Labels of a line's end after its name, and where in it the value begins; None when it does not read."""
    labels: Labels = {}
    at = len(rest) - len(rest.lstrip(b" \t"))
    if rest.startswith(b"{", at):
        at += 1
        while (pair := _LABEL.match(rest, at)) is not None:
            labels[pair[1]] = pair[2]
            at = pair.end()
            if not pair[3]:
                break
        while rest[at : at + 1] in (b" ", b"\t"):
            at += 1
        if not rest.startswith(b"}", at):
            return None
        at += 1
    value = rest[at:].lstrip()
    return (labels, len(rest) - len(value)) if value else None
