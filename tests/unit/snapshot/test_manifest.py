"""The manifest: what goes in comes out, and no altered, missing or added byte goes unnoticed."""

from __future__ import annotations

import hashlib
import json

import pytest

from weir.errors import CheckpointError, CorruptCheckpoint, ProtocolViolation
from weir.ids import AttemptId, CheckpointId, SubtaskId, Uid, VertexId
from weir.snapshot.commit import pending_of
from weir.snapshot.manifest import VERSION, Manifest, OperatorSnapshot, PartOf, build, checksum, decode, encode
from weir.snapshot.parts import FileRef, OperatorPart, PendingEpochs, Position, StatePart, Untagged
from weir.snapshot.records import seal, unseal

PENDING = PendingEpochs(((CheckpointId(7), {"x": 1.5}),))
READ, SUM, OUT = Uid("read"), Uid("sum – Σ"), Uid("out")
FILE = FileRef("chk-7/a2-sum-0-sums-0", 1_234, "sha256:00")
STATE = StatePart("arrow", {"0": FILE}, {"rows": 3})
PARALLELISM = {VertexId(0): 1, VertexId(1): 2}
PARTS = {
    SubtaskId(VertexId(1), 1): (OperatorPart(SUM), OperatorPart(OUT, PENDING)),
    SubtaskId(VertexId(0), 0): (OperatorPart(READ, Position({"offset": 10**18, "name": "ü\ud800"})),),
    SubtaskId(VertexId(1), 0): (OperatorPart(SUM, None, {"sums": STATE}), OperatorPart(OUT)),
}


def example(parts: dict[SubtaskId, tuple[OperatorPart, ...]] = PARTS) -> Manifest:
    return build(
        job="hot-items",
        checkpoint=CheckpointId(7),
        attempt=AttemptId(2),
        max_parallelism=128,
        created_ms=12.5,
        parts=parts,
        parallelism=PARALLELISM,
    )


def test_the_parts_of_all_subtasks_are_put_together_by_operator_and_index() -> None:
    manifest = example()
    assert manifest.operators == {
        READ: OperatorSnapshot(1, (PartOf(0, Position({"offset": 10**18, "name": "ü\ud800"})),)),
        SUM: OperatorSnapshot(2, (PartOf(0, None, {"sums": STATE}), PartOf(1))),
        OUT: OperatorSnapshot(2, (PartOf(0), PartOf(1, PENDING))),
    }
    assert manifest.files == (FILE,)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({SubtaskId(VertexId(1), 1): None}, "missing \\['1.1'\\]"),
        ({SubtaskId(VertexId(9), 0): ()}, "unknown \\['9.0'\\]"),
        ({SubtaskId(VertexId(1), 1): (OperatorPart(OUT),)}, "subtasks \\[0\\], expected all 2"),
        ({SubtaskId(VertexId(1), 1): (OperatorPart(SUM), OperatorPart(SUM))}, "twice"),
        ({SubtaskId(VertexId(0), 0): (OperatorPart(SUM),)}, "twice"),
    ],
)
def test_a_part_that_is_missing_unknown_or_there_twice_is_a_violation(changes: dict, found: str) -> None:
    parts = {subtask: part for subtask, part in (PARTS | changes).items() if part is not None}
    with pytest.raises(ProtocolViolation, match=found):
        example(parts)


def test_a_manifest_comes_back_as_it_was_written() -> None:
    manifest = example()
    assert decode(encode(manifest)) == manifest


def test_the_bytes_are_plain_json() -> None:
    assert json.loads(encode(example()))["body"]["operators"]["read"]["parallelism"] == 1


def test_what_is_inline_says_what_it_is() -> None:
    operators = json.loads(encode(example()))["body"]["operators"]
    assert operators["read"]["parts"][0]["inline"]["kind"] == "position"
    assert operators["out"]["parts"][1]["inline"] == {"kind": "pending_epochs", "epochs": [[7, {"x": 1.5}]]}


def test_a_manifest_of_format_1_is_read_and_written_on_as_what_it_is() -> None:
    body = unseal(encode(example()), "")
    for uid, inline in (("read", {"offset": 3}), ("out", {"pending": [[7, {"x": 1.5}]]})):
        body["operators"][uid]["parts"][0]["inline"] = inline
    body["operators"]["out"]["parts"][1]["inline"] = None
    old = decode(seal({**body, "version": 1}))
    assert old.operators[READ].parts[0].inline == Untagged({"offset": 3})
    assert pending_of(old, OUT) == [{"x": 1.5}]
    assert decode(encode(old)) == old
    assert unseal(encode(old), "")["version"] == VERSION


def test_an_inline_part_without_a_tag_or_with_an_unknown_one_is_refused_in_the_format_of_today() -> None:
    body = unseal(encode(example()), "")
    for inline in ({"pending": []}, {"kind": "no such", "value": 1}, {"kind": "position"}, 5):
        body["operators"]["read"]["parts"][0]["inline"] = inline
        with pytest.raises(CorruptCheckpoint, match=f"what format version {VERSION} has"):
            decode(seal(body))


def test_every_flipped_bit_is_detected() -> None:
    data = encode(example())
    for position in range(len(data)):
        for bit in range(8):
            altered = bytearray(data)
            altered[position] ^= 1 << bit
            with pytest.raises(CorruptCheckpoint):
                decode(bytes(altered))


def test_every_truncation_and_every_addition_is_detected() -> None:
    data = encode(example())
    for length in range(len(data)):
        with pytest.raises(CorruptCheckpoint):
            decode(data[:length])
    for altered in (data + b"\n", b" " + data, data + data, b"\0" * len(data)):
        with pytest.raises(CorruptCheckpoint):
            decode(altered)


def test_a_newer_version_is_told_from_damage_and_named() -> None:
    with pytest.raises(
        CheckpointError, match=f"version {VERSION + 1}, and this Weir reads versions up to {VERSION}"
    ) as e:
        decode(seal({**unseal(encode(example()), ""), "version": VERSION + 1}))
    assert not isinstance(e.value, CorruptCheckpoint)


@pytest.mark.parametrize(
    "body", [b"{}", b"[]", b"null", b'{"version":"1"}', b'{"version":1}', b"{", b'{"version":1,"job":2}']
)
def test_a_body_that_is_no_manifest_is_refused(body: bytes) -> None:
    digest = hashlib.sha256(body).hexdigest().encode()
    with pytest.raises(CorruptCheckpoint):
        decode(b'{"body":' + body + b',"sha256":"' + digest + b'"}')


def test_the_checksum_of_a_file_takes_any_buffer_and_sees_any_change() -> None:
    data = bytes(range(256))
    assert checksum(data) == checksum(bytearray(data)) == checksum(memoryview(data))
    assert len({checksum(data), checksum(data[:-1]), checksum(data + b"\0"), checksum(b"")}) == 4


@pytest.mark.parametrize("path", ["/etc/passwd", "../job.json", "shared/../../x"])
def test_a_manifest_that_names_a_file_outside_its_directory_is_refused(path: str) -> None:
    part = OperatorPart(SUM, None, {"sums": StatePart("arrow", {"0": FileRef(path, 1, "sha256:00")})})
    with pytest.raises(CorruptCheckpoint, match="outside its directory"):
        decode(encode(example({**PARTS, SubtaskId(VertexId(1), 0): (part, OperatorPart(OUT))})))
