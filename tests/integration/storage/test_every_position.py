"""Every file of a topic, cut at every position, and with every bit of it flipped.

`look` and its model say what must come of it; the tables here say which files, at which moments.
The quick form takes a part of the bytes and one bit of each; LOGD_LONG=1 takes everything.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest

from tests.integration.storage.small_log import Files, State, read_slot, slots
from tests.support.byte_sweep import Case, cuts, flip, flips, positions, some_of, sweep
from tests.support.long_run import LONG
from tests.support.repair_outcomes import look, look_faulted_as_a_whole

ALL_PLACES = [(name, part) for name in ("clean", "killed", "ahead", "rolled") for part in range(3)]
PLACES = [("clean", 0), ("clean", 1), ("clean", 2), ("killed", 1), ("killed", 2), ("ahead", 2),
          ("rolled", 1)]  # fmt: skip


@pytest.mark.parametrize(("name", "number"), ALL_PLACES if LONG else PLACES)
def test_a_log_cut_anywhere(
    states: dict[str, State], tmp_path: Path, name: str, number: int
) -> None:
    state = states[name]
    part = state.parts[number]
    sweep(tmp_path / "app", state, cuts(state, part.name, positions(part)), look)


@pytest.mark.parametrize(("name", "number"), ALL_PLACES if LONG else PLACES)
def test_a_log_with_any_bit_flipped(
    states: dict[str, State], tmp_path: Path, name: str, number: int
) -> None:
    state = states[name]
    part = state.parts[number]
    sweep(tmp_path / "app", state, flips(state, part.name, positions(part)), look)


@pytest.mark.parametrize("name", ["clean", "killed"])
@pytest.mark.parametrize("suffix", [".index", ".ids"])
def test_an_index_or_a_memory_of_producers_cut_or_flipped_anywhere(
    states: dict[str, State], tmp_path: Path, name: str, suffix: str
) -> None:
    state = states[name]
    for number, file in enumerate(sorted(f for f in state.files if f.endswith(suffix))):
        everywhere = some_of(len(state.files[file]))
        cases = chain(cuts(state, file, everywhere), flips(state, file, everywhere))
        sweep(tmp_path / str(number) / "app", state, cases, look)


def look_at_checkpoint(directory: Path, state: State, files: Files) -> None:
    """A slot counts while its line is as it was written; the newer one that counts is believed."""
    written = state.files["checkpoint"]
    sound = [
        read_slot(old)
        for old, new in zip(slots(written), slots(files["checkpoint"]), strict=True)
        if new.startswith(old.rstrip(b"\0"))
    ]
    if not any(sound):
        look_faulted_as_a_whole(directory, state, files)
        return
    believed = replace(state)
    believed.__dict__["checkpoint"] = max(filter(None, sound))
    look(directory, believed, files)


@pytest.mark.parametrize("name", ["clean", "killed", "rolled"])
def test_a_checkpoint_cut_or_flipped_anywhere(
    states: dict[str, State], tmp_path: Path, name: str
) -> None:
    state = states[name]
    step, between = (1, 61) if LONG else (2, 4000)  # between the two lines there are zeros only
    lines = [*range(0, 200, step), *range(4095, 4296, step), *range(200, 8192, between)]
    cases = chain(cuts(state, "checkpoint", lines), flips(state, "checkpoint", lines))
    sweep(tmp_path / "app", state, cases, look_at_checkpoint)


def both_slots_flipped(state: State) -> list[Case]:
    data = state.files["checkpoint"]
    return [
        (
            f"byte {i} of both slots",
            {**state.files, "checkpoint": flip(flip(data, i, i % 8), 4096 + i, i % 8)},
        )
        for i in some_of(150)
    ]


@pytest.mark.parametrize("name", ["clean", "killed", "rolled"])
def test_both_slots_of_a_checkpoint_flipped(
    states: dict[str, State], tmp_path: Path, name: str
) -> None:
    state = states[name]
    sweep(tmp_path / "app", state, both_slots_flipped(state), look_at_checkpoint)


def look_at_meta(directory: Path, state: State, files: Files) -> None:
    """Only the line end may be missing."""
    same = files["meta.json"] == state.files["meta.json"].rstrip(b"\n")
    (look if same else look_faulted_as_a_whole)(directory, state, files)


@pytest.mark.parametrize("name", ["clean", "killed"])
def test_a_meta_file_cut_or_flipped_anywhere(
    states: dict[str, State], tmp_path: Path, name: str
) -> None:
    state = states[name]
    everywhere = some_of(len(state.files["meta.json"]))
    cases = chain(cuts(state, "meta.json", everywhere), flips(state, "meta.json", everywhere))
    sweep(tmp_path / "app", state, cases, look_at_meta)
