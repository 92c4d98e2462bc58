"""What a check or a repair found, for a person or for a program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.message_formats import Table, json_line, stdout
from logd.wire.text import counted

if TYPE_CHECKING:
    from logd.repair import LostRange, RepairReport

Topics = Annotated[
    list[str] | None, typer.Argument(metavar="TOPIC", help="Only these topics; none: all.")
]
Output = Annotated[Table, typer.Option("-o", "--output", help="text, or json: a line per topic.")]


def print_reports(reports: list[RepairReport], output: Table, *, repaired: bool = False) -> None:
    with stdout() as out:
        for report in reports:
            if output is Table.json:
                out.write(json_line(_as_object(report, repaired)))
            else:
                out.write("".join(f"{line}\n" for line in _lines(report, repaired)).encode())


def _lines(report: RepairReport, repaired: bool) -> list[str]:
    counts = f"{counted(report.messages, 'message')}, {counted(report.kept_bytes, 'byte')}"
    lines = []
    if report.gaps:
        counts += f", {counted(len(report.gaps), 'gap')}"
    if not (report.cut_bytes or report.damages or report.filled):
        lines = [f"{report.topic}: {'no damage' if report.gaps else 'sound'}, {counts}"]
    if report.cut_bytes:
        did = "cut" if repaired else "found"
        lines.append(
            f"{report.topic}: {did} a torn tail of {counted(report.cut_bytes, 'byte')}"
            f" behind {counts} ({report.cut_reason})"
        )
    lines += [f"{report.topic}: {damage}" for damage in report.damages]
    lines += [f"{report.topic}: {_gap_text(gap)}" for gap in report.gaps]
    accepted = "accepted as lost" if repaired else "would be lost for good"
    lines += [f"{report.topic}: {accepted}: {damage}" for damage in report.filled]
    lines += [f"{report.topic}: a copy is in quarantine/{copy}" for copy in report.quarantine]
    return lines


def _gap_text(gap: LostRange) -> str:
    lost = counted(gap.next - gap.first, "message was", "messages were")
    return f"gap at offsets {gap.first} to {gap.next - 1}: {lost} lost and accepted as lost"


def _as_object(report: RepairReport, repaired: bool) -> dict[str, Any]:
    def objects(damages: list[Any]) -> list[dict[str, Any]]:
        return [damage._asdict() for damage in damages]

    return {
        "topic": report.topic,
        "sound": not (report.damages or (report.cut_bytes and not repaired)),
        "messages": report.messages,
        "bytes": report.kept_bytes,
        "torn_tail": {"bytes": report.cut_bytes, "reason": report.cut_reason, "cut": repaired}
        if report.cut_bytes
        else None,
        "gaps": objects(report.gaps),
        "damages": objects(report.damages),
        "accepted": objects(report.filled),
        "quarantine": report.quarantine,
    }
