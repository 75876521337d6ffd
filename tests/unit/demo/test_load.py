"""The queries that are sent, their times, and how replies are read."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from modelless.controller.api.v2_headers import read_headers
from modelless.controller.api.v2_request import parse_infer
from modelless.controller.demo.load import (
    BROKEN,
    LoadSpec,
    Reply,
    ScheduledQuery,
    StepSpec,
    prepare_requests,
    read_reply,
    row_of,
    schedule,
)
from modelless.controller.demo.profiles import Profiles
from modelless.controller.demo.slos import (
    MOST_PER_S,
    OVERHEAD_S,
    SERVING_SHARE,
    STEPS,
    best_within,
    burst_mix,
    capacity_per_s,
    estimate_service_s,
    plan_steps,
)
from modelless.variants.vocabulary import SLO
from tests.unit.demo.conftest import DEVICE, kind_named, make_profiled


def test_the_schedule_follows_the_steps(spec: LoadSpec) -> None:
    steps = [StepSpec(seconds=10, per_s=100), StepSpec(seconds=10, per_s=300)]
    shots = schedule(spec.model_copy(update={"steps": steps}), [3, 5])
    due_s = [shot.due_s for shot in shots]
    assert due_s == sorted(due_s)
    assert due_s[0] >= 0.0
    assert due_s[-1] < 20.0
    early = sum(at_s < 10.0 for at_s in due_s)
    assert early == pytest.approx(1000, abs=150)
    assert len(shots) - early == pytest.approx(3000, abs=250)
    assert {shot.image for shot in shots if shot.kind == 0} == {0, 1, 2}
    assert {shot.image for shot in shots if shot.kind == 1} == {0, 1, 2, 3, 4}


def test_the_same_seed_gives_the_same_schedule(spec: LoadSpec) -> None:
    assert schedule(spec, [1, 1]) == schedule(spec, [1, 1])
    assert schedule(spec, [1, 1]) != schedule(spec.model_copy(update={"seed": 1}), [1, 1])
    silent = spec.model_copy(update={"steps": [StepSpec(seconds=1, per_s=0)]})
    assert schedule(silent, [1, 1]) == []


def test_specs_survive_the_way_to_the_other_process(spec: LoadSpec) -> None:
    assert LoadSpec.model_validate_json(spec.model_dump_json()) == spec
    with pytest.raises(ValidationError):
        LoadSpec(url="http://x", kinds=[], steps=spec.steps)


def read_all(*pieces: bytes) -> list[Reply]:
    """The replies that a connection gives, up to its end."""

    async def run() -> list[Reply]:
        reader = asyncio.StreamReader()
        for piece in pieces:
            reader.feed_data(piece)
        reader.feed_eof()
        return [await read_reply(reader) for _ in range(2)]

    return asyncio.run(run())


def test_replies_are_cut_wherever_the_network_cuts() -> None:
    whole = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
    other = b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\n\r\n"
    for cut in range(len(whole)):
        assert read_all(whole[:cut], whole[cut:] + other) == [
            Reply(200, b"hello"),
            Reply(429, b""),
        ]


def test_the_last_reply_of_a_connection_says_so() -> None:
    closing = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx"
    assert read_all(closing) == [Reply(200, b"x", is_last=True), BROKEN]


@pytest.mark.parametrize(
    "data", [b"SSH-2.0-OpenSSH\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell"]
)
def test_what_is_not_a_whole_reply_is_broken(data: bytes) -> None:
    assert read_all(data)[0] == BROKEN


def answer(class_index: int = 7) -> Reply:
    document = {
        "parameters": {"observed_latency_ms": 4.5, "variant": "t/m/v@1", "accuracy": 75.0},
        "outputs": [{"name": "y", "data": [f"0.9:{class_index}:seven"]}],
    }
    return Reply(200, json.dumps(document).encode())


def test_an_answer_becomes_a_row() -> None:
    shot = ScheduledQuery(1.0, 2, 0)
    row = row_of(shot, answer(), 6.0, 0.5, [7, 8])
    assert row[:5] == (2, 1.0, 200, 6.0, 0.5)
    assert row[5:] == (4.5, "t/m/v@1", 75.0, True, "", "")
    assert row_of(shot, answer(9), 6.0, 0.5, [7, 8]).is_right is False
    assert row_of(shot, answer(), 6.0, 0.5, []).is_right is None


@pytest.mark.parametrize("body", [b"", b"{}", b'{"parameters":{},"outputs":[]}', b"[1]"])
def test_an_answer_that_cannot_be_read_is_no_answer(body: bytes) -> None:
    unreadable = row_of(ScheduledQuery(1.0, 0, 0), Reply(200, body), 6.0, 0.5, [])
    assert (unreadable.status, unreadable.lost) == (0, "unreadable")


def test_refusals_and_silence_become_rows() -> None:
    for body, error in ((b"x", ""), (b"[1]", ""), (b'{"error":"no room"}', "no room")):
        refused = row_of(ScheduledQuery(1.0, 0, 0), Reply(429, body), 6.0, 0.5, [])
        assert (refused.status, refused.error) == (429, error)
    broken = row_of(ScheduledQuery(1.0, 0, 0), BROKEN, 6.0, 0.5, [])
    assert (broken.status, broken.lost) == (0, "broken")


def test_requests_are_what_the_server_reads(spec: LoadSpec, tmp_path: Path) -> None:
    images = np.arange(2 * 4 * 4 * 3, dtype=np.uint8).reshape(2, 4, 4, 3)
    np.save(tmp_path / "images.npy", images)
    kind = kind_named("quick").model_copy(update={"images": tmp_path / "images.npy"})
    requests = prepare_requests(spec.model_copy(update={"kinds": [kind, kind]}))
    assert [len(of_kind) for of_kind in requests] == [2, 2]
    head, _, body = requests[0][1].partition(b"\r\n\r\n")
    fields = dict(line.split(b": ") for line in head.split(b"\r\n")[1:])
    assert int(fields[b"content-length"]) == len(body)
    said = read_headers(fields.items())
    parsed = parse_infer(memoryview(body), said.json_length, header_parameters=said.parameters)
    np.testing.assert_array_equal(parsed.tensors["image"], images[1:])
    assert parsed.slo == SLO(latency_ms=50.0)
    assert parsed.requested_outputs[0].class_count == 1


def test_the_mix_is_feasible_on_an_idle_system(profiles: Profiles) -> None:
    mix = burst_mix(profiles.by_task["imagenet"], DEVICE, "fashion-mnist")
    assert sum(part.weight for part in mix) == pytest.approx(1.0)
    assert len({part.named.name for part in mix}) == len(mix)
    assert all(part.named.slo.latency_ms for part in mix)
    for part in mix:
        assert best_within(profiles.by_task[part.task], part.named.slo, DEVICE.cost_usd(1.0))


def test_service_time_is_that_of_what_an_idle_system_chooses(profiles: Profiles) -> None:
    only = [make_profiled("fp32-224", 75.0, 9.0)]
    mix = burst_mix(only, DEVICE, "imagenet")
    service_s = estimate_service_s(mix, {"imagenet": only}, DEVICE)
    assert service_s == pytest.approx(0.009 + OVERHEAD_S)
    both = burst_mix(profiles.by_task["imagenet"], DEVICE, "fashion-mnist")
    slowest = max(p.points[0].mean_s for p in profiles.by_task["imagenet"])
    assert 0.0 < estimate_service_s(both, profiles.by_task, DEVICE) < slowest + OVERHEAD_S


def test_capacity_is_gateways_over_service_time() -> None:
    assert capacity_per_s(2, 0.01) == pytest.approx(SERVING_SHARE * 200.0)


def test_steps_keep_to_what_one_client_can_send(spec: LoadSpec) -> None:
    steps = plan_steps(100.0, 120.0)
    assert [step.per_s for step in steps] == [pytest.approx(100.0 * share) for share in STEPS]
    load = spec.model_copy(update={"steps": steps})
    assert load.length_s == pytest.approx(120.0)
    assert max(step.per_s for step in plan_steps(1e6, 120.0)) == pytest.approx(MOST_PER_S)
    assert load.offered_per_s(0.0) == steps[0].per_s
    assert load.offered_per_s(119.9) == steps[-1].per_s
    assert load.offered_per_s(120.0) == 0.0
