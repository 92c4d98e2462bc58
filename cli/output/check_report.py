"""The report of a check or a repair, as text or JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from cli.output.stdout import ReportFormat, print_report
from logd.wire.text import counted

if TYPE_CHECKING:
    from logd.repair import RepairReport
    from logd.wire.offset_ranges import OffsetRange


def print_reports(
    reports: list[RepairReport], output: ReportFormat, *, repaired: bool = False
) -> None:
    objects = (_as_object(report, repaired) for report in reports)
    lines = (f"{each.topic}: {text}" for each in reports for text in _texts(each, repaired))
    print_report(output, objects, lines)


def _texts(report: RepairReport, repaired: bool) -> Iterator[str]:
    counts = f"{counted(report.messages, 'message')}, {counted(report.kept_bytes, 'byte')}"
    if report.gaps:
        counts += f", {counted(len(report.gaps), 'gap')}"
    if not (report.cut_bytes or report.damages or report.filled):
        yield f"{'no damage' if report.gaps else 'ok'}, {counts}"
    if report.cut_bytes:
        action = "removed" if repaired else "found"
        yield (
            f"{action} a torn tail of {counted(report.cut_bytes, 'byte')} after {counts}"
            f" ({report.cut_reason})"
        )
    yield from map(str, report.damages)
    yield from map(_gap_text, report.gaps)
    accepted = "accepted as lost" if repaired else "would be lost permanently"
    yield from (f"{accepted}: {damage}" for damage in report.filled)
    yield from (f"saved a copy in quarantine/{copy}" for copy in report.quarantine)


def _gap_text(gap: OffsetRange) -> str:
    lost = counted(gap.next - gap.first, "message was", "messages were")
    return f"gap at offsets {gap}: {lost} lost and accepted as lost"


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
