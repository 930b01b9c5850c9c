"""A GPU request is built from what people wrote, or every error is told by field, value and what would be right."""

from __future__ import annotations

import pytest

from sharepod_operator.core.model import GPURequest
from sharepod_operator.core.request import RequestFields, RequestLabels, build_request

ANNOTATIONS = RequestLabels(request="annotation kubeshare/gpu_request", limit="annotation kubeshare/gpu_limit")


def test_absent_fields_have_defaults() -> None:
    """Limit = request, count = 1, memory = 0, no tags, any GPU."""
    assert GPURequest(500, 500) == build_request(RequestFields(request="0.5"))


def test_every_field_arrives() -> None:
    """Text and JSON numbers alike."""
    raw = RequestFields(0.25, "1", "10Gi", 2, "red", "green", "blue", ["GPU-b", "GPU-a", "GPU-b"])
    assert GPURequest(250, 1000, 10 * 2**30, 2, "red", "green", "blue", ("GPU-b", "GPU-a")) == build_request(raw)


def test_a_gpu_id_arrives() -> None:
    """The GPUID of KubeShare, a UUID or a name."""
    assert GPURequest(250, 250, gpu_id="abcde") == build_request(RequestFields("0.25", gpu_id="abcde"))


def test_empty_text_means_no_tag_and_no_gpu_id() -> None:
    """As KubeShare's manifests write it."""
    raw = RequestFields("0.5", affinity="", anti_affinity="", exclusion="", device_ids=[], gpu_id="")
    assert GPURequest(500, 500) == build_request(raw)


def test_best_effort_has_a_limit_of_its_own() -> None:
    """A request of 0 guarantees nothing, so the limit can't default to it."""
    assert GPURequest(0, 1000) == build_request(RequestFields("0", "1"))
    assert ["spec.gpu.limit: it is missing, a request of 0 (best effort) needs a limit above 0 and at most 1"] == (
        build_request(RequestFields(0))
    )


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (RequestFields(), "spec.gpu.request: it is missing, say how much of a GPU is wanted, such as 0.5"),
        (RequestFields("1.5"), 'spec.gpu.request: "1.5" must be between 0 and 1'),
        (RequestFields("1.00000000000000000000000000000000001"),
         'spec.gpu.request: "1.00000000000000000000000000000000001" must be between 0 and 1'),
        (RequestFields(2), "spec.gpu.request: 2 must be between 0 and 1"),
        (RequestFields("-0.5"), 'spec.gpu.request: "-0.5" is not a number such as 0.5'),
        (RequestFields("0.5", "0"), 'spec.gpu.limit: "0" must be above 0 and at most 1'),
        (RequestFields("0.5", "1e999999999"), 'spec.gpu.limit: "1e999999999" must be above 0 and at most 1'),
        (RequestFields("0.5", 0.4), 'spec.gpu.limit: 0.4 must be at least the request, "0.5"'),
        (RequestFields("0.5", memory="10 GB"), 'spec.gpu.memory: "10 GB" is not a quantity such as 512Mi or 10Gi'),
        (RequestFields("0.5", count=0), "spec.gpu.count: 0 must be at least 1"),
        (RequestFields("0.5", count="1.5"), 'spec.gpu.count: "1.5" is not a whole number'),
        (RequestFields("0.5", affinity=1), "spec.gpu.affinity: 1 must be text, write it in quotes"),
        (RequestFields("0.5", exclusion="a\nb"),
         'spec.gpu.exclusion: "a\\nb" must not contain line breaks or other control characters'),
        (RequestFields("0.5", anti_affinity="x" * 65),
         f'spec.gpu.antiAffinity: "{"x" * 61}..." must be at most 63 characters long'),
        (RequestFields("0.5", device_ids="GPU-a"), 'spec.gpu.deviceIDs: "GPU-a" must be a list of GPU UUIDs'),
        (RequestFields("0.5", device_ids=["GPU-a", "b c"]),
         'spec.gpu.deviceIDs[1]: "b c" must be at most 64 letters, digits, dots, dashes or underscores, the first a letter or digit'),
        (RequestFields("0.5", device_ids=["a"] * 257), "spec.gpu.deviceIDs: a list of 257 must name at most 256 GPUs"),
        (RequestFields("0.5", gpu_id=["a"]),
         "kubeshare/GPUID: ['a'] must be at most 64 letters, digits, dots, dashes or underscores, the first a letter or digit"),
        (RequestFields("0.5", count=2, gpu_id="a"), 'kubeshare/GPUID: "a" names one GPU, but spec.gpu.count is 2'),
    ],
)  # fmt: skip
def test_one_error_is_one_sentence(raw: RequestFields, expected: str) -> None:
    """Field, value, and what would be right."""
    assert [expected] == build_request(raw)


def test_all_errors_come_at_once_under_the_names_that_people_used() -> None:
    """Nobody mends a manifest one error at a time."""
    errors = build_request(RequestFields("x", "2", count="y"), ANNOTATIONS)
    assert [
        'annotation kubeshare/gpu_request: "x" is not a number such as 0.5',
        'spec.gpu.count: "y" is not a whole number such as 2',
        'annotation kubeshare/gpu_limit: "2" must be above 0 and at most 1',
    ] == errors
