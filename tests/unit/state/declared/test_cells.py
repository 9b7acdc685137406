"""Layers of heap state: freezing costs nothing, merging a little at a time, and nothing is ever lost between them."""

from __future__ import annotations

import gc
import random
from typing import Any

import pytest

from weir.state.declared import cells
from weir.state.declared.cells import Cells, CellsView, Layers


class Held:
    """Stands for a handle."""

    data: Cells


def layers() -> tuple[Layers, Held]:
    held = Held()

    def attach(live: Cells) -> None:
        held.data = live

    return Layers(0, attach), held


def contents(view: CellsView) -> dict[Any, Any]:
    entries = [entry for piece in view.pieces() for entry in zip(*piece, strict=True)]
    assert len(entries) == len(dict(entries))
    return dict(entries)


def no_expiry(key: Any) -> None:
    raise AssertionError(f"{key} has not expired")


@pytest.mark.parametrize("seed", range(30))
def test_views_and_reads_agree_with_a_dictionary_however_little_is_merged_at_a_time(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cells, "MERGE_ENTRIES_LEAST", 3)
    monkeypatch.setattr(cells, "PIECE_KEYS", 7)
    monkeypatch.setattr(cells, "STEP_KEYS", 3)
    chance = random.Random(seed)
    state, held = layers()
    model: dict[int, int] = {}
    views: list[tuple[CellsView, dict[int, int]]] = []
    for _ in range(1_500):
        key = chance.randrange(80)
        match chance.choices(["set", "forget", "tidy", "freeze", "release"], [20, 8, 4, 1, 1])[0]:
            case "set":
                held.data[key] = model[key] = chance.randrange(1_000)
            case "forget":
                held.data.forget(key)
                model.pop(key, None)
            case "tidy":
                state.tidy(chance.randrange(3), no_expiry)
            case "freeze" if len(views) < 4:
                views.append((state.freeze(), dict(model)))
            case "release" if views:
                view, expected = views.pop(chance.randrange(len(views)))
                assert contents(view) == expected
                view.release()
        assert held.data[key] == model.get(key, 0)
    for view, expected in views:
        assert contents(view) == expected
        view.release()
    while held.data.below:
        state.tidy(0, no_expiry)
    assert dict(held.data) == model and not held.data.gone


def test_a_batch_merges_no_more_than_its_share_and_soon_all_is_one_layer_again() -> None:
    state, held = layers()
    held.data.update((key, 1) for key in range(100_000))
    view = state.freeze()
    assert held.data == {} and held.data[5] == 1
    held.data.update((key, 2) for key in range(50_000))
    state.tidy(100, no_expiry)
    assert len(held.data) == 50_000
    view.release()
    left = len(held.data)
    share = cells.MERGE_ENTRIES_LEAST + 100 * cells.MERGE_ENTRIES_PER_KEY
    batches = 0
    while held.data.below:
        state.tidy(100, no_expiry)
        batches += 1
        assert len(held.data) == left - share or not held.data.below
        left -= share
    assert batches == -(-50_000 // share)
    assert len(held.data) == 100_000 and held.data[1] == 2 and held.data[99_999] == 1


def test_freezing_again_without_changes_adds_no_layer() -> None:
    state, held = layers()
    held.data[1] = 1
    views = [state.freeze() for _ in range(10)]
    assert len(held.data.below) == 1
    assert all(contents(view) == {1: 1} for view in views)


def test_a_released_view_hands_back_what_had_expired() -> None:
    state, held = layers()
    held.data[1] = 1
    view = state.freeze()
    view.expired.append(1)
    dropped: list[int] = []
    state.tidy(1, dropped.append)
    assert dropped == []
    view.release()
    state.tidy(1, dropped.append)
    state.tidy(1, dropped.append)
    assert dropped == [1]


def test_once_its_entries_are_copied_a_view_no_longer_keeps_the_layers_apart() -> None:
    state, held = layers()
    held.data.update((key, 1) for key in range(3))
    view = state.freeze()
    held.data[0] = 2
    state.tidy(9, no_expiry)
    assert held.data.below
    copied = view.copy(in_place=False)
    assert copied == [([0, 1, 2], [1, 1, 1])] and not any(map(gc.is_tracked, copied[0]))
    state.tidy(9, no_expiry)
    assert not held.data.below and held.data == {0: 2, 1: 1, 2: 1}
    held.data[1] = 2
    assert view.copy(in_place=False) == [([0, 1, 2], [1, 1, 1])]
    view.discard(lambda: None)
    assert copied == []
    view.release()


def test_what_may_be_changed_in_place_is_not_merged_before_the_view_is_released() -> None:
    state, held = layers()
    held.data[1] = [1]
    view = state.freeze()
    [(keys, (values,))] = view.copy(in_place=True)
    held.data.own(1).append(2)
    state.tidy(9, no_expiry)
    held.data.own(1).append(3)
    assert (keys, values, held.data[1]) == ([1], [1], [1, 2, 3])
    view.release()
    state.tidy(9, no_expiry)
    assert not held.data.below and held.data == {1: [1, 2, 3]}
