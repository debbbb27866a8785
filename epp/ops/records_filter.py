"""`epp records filter`: the lines of the requests that are wanted, as they are on file, for other tools."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import msgspec

from epp.records.check import whole_records
from epp.records.query import add_conditions, add_folder, query_of
from epp.records.schema import join

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    add_folder(parser)
    add_conditions(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print decision and outcome of each request, a line each; the output reads like a file of records."""
    query, encode = query_of(arguments), msgspec.json.Encoder().encode
    for request in join(whole_records(arguments.folder)):
        if query.matches(request):
            for record in (request.decision, request.outcome):
                if record is not None:
                    sys.stdout.write(encode(record).decode() + "\n")
    return 0
