"""Promises of the claim parser: our results, exact numbers, and an error that names the path for everything else."""

import copy
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra.claims import Claim, ClaimError, ConfigSource, OpaqueConfig, Result, parse_claim, parse_quantity
from tests.unit.dra.manifests import NODE, UID, config, configured, manifest, result, uid

RESULTS = "status.allocation.devices.results"
CONFIG = "status.allocation.devices.config"


def test_a_claim_is_read() -> None:
    assert parse_claim(manifest(result(shareID=uid(9)), pod=uid(7)), UID) == Claim(
        uid=UID,
        namespace="default",
        name="one",
        results=(Result("cpus", NODE, "cpudevnuma000", uid(9), 2, admin_access=False),),
        pod_uids=(uid(7),),
    )


def test_an_individual_result_has_no_capacity() -> None:
    (found,) = parse_claim(manifest(result("cpudev003", None)), UID).results
    assert found.consumed_cpus is None
    assert found.share_id is None


def test_a_subrequest_keeps_its_name() -> None:
    (found,) = parse_claim(manifest(result(request="cpus/big")), UID).results
    assert found.request == "cpus/big"


@pytest.mark.fault("A5")
def test_results_of_other_drivers_are_not_looked_at() -> None:
    other = {"driver": "gpu.example", "device": 7, "consumedCapacity": []}
    assert [found.device for found in parse_claim(manifest(other, result(), other), UID).results] == ["cpudevnuma000"]
    assert parse_claim(manifest(other), UID).results == ()


def test_configs_are_read_as_they_are() -> None:
    entries = [config({"x": 1}, requests=["cpus", "more/big"]), config({"y": 2}, source="FromClass"), config(None)]
    assert parse_claim(configured(*entries), UID).configs == (
        OpaqueConfig(ConfigSource.CLASS, (), {"y": 2}, f"{CONFIG}[1].opaque.parameters"),
        OpaqueConfig(ConfigSource.CLAIM, ("cpus", "more/big"), {"x": 1}, f"{CONFIG}[0].opaque.parameters"),
        OpaqueConfig(ConfigSource.CLAIM, (), None, f"{CONFIG}[2].opaque.parameters"),
    )


@pytest.mark.fault("A5")
def test_configs_of_other_drivers_are_not_looked_at() -> None:
    other = {"source": 3, "requests": "x", "opaque": {"driver": "gpu.example", "parameters": []}}
    nobody = {"source": "FromClaim", "opaque": None}
    found = parse_claim(configured(other, config({}), nobody, {}), UID).configs
    assert [entry.path for entry in found] == [f"{CONFIG}[1].opaque.parameters"]


@pytest.mark.fault("A11", "A12")
@pytest.mark.parametrize(
    ("request_", "requests", "counts"),
    [
        ("cpu", [], True),
        ("cpu", ["cpu"], True),
        ("cpu", ["gpu", "cpu"], True),
        ("cpu/big", ["cpu"], True),
        ("cpu/big", ["cpu/big"], True),
        ("cpu/big", ["cpu/small"], False),
        ("cpu", ["cpu/big"], False),
        ("cpu", ["cp"], False),
    ],
)
def test_a_config_counts_for_its_requests_and_their_alternatives(
    request_: str, requests: list[str], counts: bool
) -> None:
    (entry,) = parse_claim(configured(config({}, requests=requests)), UID).configs
    assert entry.is_for(request_) is counts


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        (7, "[0] is a number, not an object"),
        ({"opaque": "x"}, "[0].opaque is a string, not an object"),
        ({"opaque": {}}, "[0].opaque.driver is missing, not a non-empty string"),
        ({"opaque": {"driver": 5}}, "[0].opaque.driver is a number"),
        (config({}, source="FromNode"), "[0].source is 'FromNode', not FromClass or FromClaim"),
        (config({}) | {"source": None}, "[0].source is missing"),
        (config({}) | {"requests": "cpus"}, "[0].requests is a string, not a list"),
        (config({}) | {"requests": ["cpus", 3]}, "[0].requests[1] is a number"),
    ],
)
def test_a_wrong_field_of_a_config_is_named(entry: Any, told: str) -> None:
    with pytest.raises(ClaimError) as caught:
        parse_claim(configured(entry), UID)
    assert str(caught.value).startswith(f"{CONFIG}{told}")


def test_configs_that_are_no_list_are_refused() -> None:
    wrong = configured()
    wrong["status"]["allocation"]["devices"]["config"] = {}
    with pytest.raises(ClaimError, match=r"devices.config is an object, not a list"):
        parse_claim(wrong, UID)


@pytest.mark.fault("B9")
def test_admin_access_is_seen() -> None:
    (found,) = parse_claim(manifest(result(adminAccess=True)), UID).results
    assert found.admin_access


@pytest.mark.fault("K3")
def test_a_claim_made_anew_under_the_same_name_is_refused() -> None:
    with pytest.raises(ClaimError, match=f"metadata.uid is {UID}, not {uid(1)}: .* replaced"):
        parse_claim(manifest(), uid(1))


@pytest.mark.parametrize("field", ["name", "namespace"])
@pytest.mark.parametrize("value", ["a\nb", "a\x1b[31m", "\ud800", "x" * 254])
def test_a_name_that_no_object_can_have_is_refused(field: str, value: str) -> None:
    claim = manifest()
    claim["metadata"][field] = value
    with pytest.raises(ClaimError, match=f"metadata.{field} '.*' is no name of a Kubernetes object") as caught:
        parse_claim(claim, UID)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("field", ["name", "namespace"])
@pytest.mark.parametrize("value", ["..", "../x", "a/b", "/etc", ".a", "a.", "a..b", "A", "a_b", "-a", "a-", "a b", "ü"])
def test_a_name_that_would_be_another_path_is_refused(field: str, value: str) -> None:
    claim = manifest()
    claim["metadata"][field] = value
    with pytest.raises(ClaimError, match=f"metadata.{field} '.*' is no name of a Kubernetes object"):
        parse_claim(claim, UID)


@pytest.mark.parametrize("name", ["a", "0", "a.b-c.9", "x" * 253, "a-" * 126 + "a"])
def test_every_name_that_an_object_can_have_is_taken(name: str) -> None:
    assert parse_claim(manifest(name=name), UID).name == name


@pytest.mark.parametrize(
    ("annotations", "name"),
    [
        ({"resource.kubernetes.io/pod-claim-name": "mine"}, "mine"),
        ({"resource.kubernetes.io/pod-claim-name": ""}, None),
        ({"resource.kubernetes.io/pod-claim-name": "../../../etc"}, None),
        ({"resource.kubernetes.io/pod-claim-name": "a.b"}, None),
        ({"resource.kubernetes.io/pod-claim-name": "mine\n"}, None),
        ({"resource.kubernetes.io/pod-claim-name": "x" * 64}, None),
        ({"resource.kubernetes.io/pod-claim-name": 7}, None),
        ({"something": "else"}, None),
        ({}, None),
        (None, None),
    ],
)
def test_a_pods_name_for_its_claim_is_a_name_or_says_nothing(annotations: object, name: str | None) -> None:
    claim = manifest()
    claim["metadata"]["annotations"] = annotations
    assert parse_claim(claim, UID).pod_claim_name == name


@pytest.mark.fault("K3")
@pytest.mark.parametrize("status", [None, {}, {"allocation": None}])
def test_a_claim_without_allocation_is_refused(status: object) -> None:
    with pytest.raises(ClaimError, match=r"^status.allocation is missing: the claim is not allocated$"):
        parse_claim(manifest() | {"status": status}, UID)


@pytest.mark.parametrize("devices", [None, {}, {"results": None}, {"results": []}])
def test_an_allocation_without_devices_asks_for_nothing(devices: object) -> None:
    assert parse_claim(manifest() | {"status": {"allocation": {"devices": devices}}}, UID).results == ()


@pytest.mark.fault("A8")
@pytest.mark.parametrize("cpus", ["2", "2000m", "2e0", "0.002k", "2000000u", "20e-1", "+2", "2.0", 2, 2.0])
def test_every_spelling_of_two_is_two(cpus: object) -> None:
    (found,) = parse_claim(manifest(result(cpus=cpus)), UID).results
    assert found.consumed_cpus == 2


@pytest.mark.fault("A8")
@pytest.mark.parametrize(
    "cpus", ["500m", "0", "-1", "1500m", "8193", "1E", 0, -3, 1.5, "2.0000000000000000001", "1e300", "1e-300"]
)
def test_what_is_no_positive_whole_number_is_refused(cpus: object) -> None:
    with pytest.raises(
        ClaimError, match=r"results\[0\].consumedCapacity\[dra.cpu/cpu\] is .*: it must be a whole number"
    ):
        parse_claim(manifest(result(cpus=cpus)), UID)


@pytest.mark.fault("A8")
@pytest.mark.parametrize(
    "cpus",
    ["", " 2", "2 ", "two", "0x2", "2Mi2", "2mm", "٢", "1_0", "9" * 99, "1e9999", True, None, [], {}, float("nan")],
)
def test_what_is_no_quantity_is_refused(cpus: object) -> None:
    wrong = manifest(result())
    wrong["status"]["allocation"]["devices"]["results"][0]["consumedCapacity"]["dra.cpu/cpu"] = cpus
    with pytest.raises(ClaimError, match=r"results\[0\].consumedCapacity\[dra.cpu/cpu\]: .* is no quantity"):
        parse_claim(wrong, UID)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1Ki", 1024),
        ("3M", 3 * 10**6),
        ("5n", Fraction(5, 10**9)),
        (".5", Fraction(1, 2)),
        ("2E", 2 * 10**18),
        ("2E2", 200),
    ],
)
def test_quantities_are_exact(text: str, value: Fraction) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (lambda claim: claim["metadata"].pop("uid"), "metadata.uid is missing"),
        (lambda claim: claim["metadata"].update(uid=7), "metadata.uid is a number"),
        (lambda claim: claim["metadata"].update(name=""), "metadata.name is empty"),
        (lambda claim: claim["metadata"].update(namespace=[]), "metadata.namespace is a list"),
        (lambda claim: claim["metadata"].update(annotations=[]), "metadata.annotations is a list"),
        (lambda claim: claim.update(metadata=None), "metadata is missing"),
        (lambda claim: claim.update(status=[]), "status is a list"),
        (lambda claim: claim["status"].update(allocation="x"), "status.allocation is a string"),
        (lambda claim: claim["status"].update(reservedFor={}), "status.reservedFor is an object"),
        (lambda claim: claim["status"]["allocation"].update(devices=1), "status.allocation.devices is a number"),
        (lambda claim: claim["status"]["allocation"]["devices"].update(results="x"), f"{RESULTS} is a string"),
    ],
)
def test_a_wrong_field_is_named(change: Any, path: str) -> None:
    claim = manifest()
    change(claim)
    with pytest.raises(ClaimError, match=f"^{path}"):
        parse_claim(claim, UID)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("driver", None, "is missing, not a non-empty string"),
        ("request", 3, "is a number"),
        ("request", "../x", "'../x' is no request name"),
        ("pool", "", "is empty"),
        ("device", None, "is missing"),
        ("shareID", "x/../y", "'x/../y' is no UUID"),
        ("shareID", 5, "is a number"),
        ("adminAccess", "true", "is a string, not true or false"),
    ],
)
def test_a_wrong_field_of_a_result_is_named(key: str, value: object, message: str) -> None:
    with pytest.raises(ClaimError) as caught:
        parse_claim(manifest(result(), result() | {key: value}), UID)
    assert str(caught.value).startswith(f"{RESULTS}[1].{key} {message}")


@pytest.mark.fault("A8")
@pytest.mark.parametrize("value", ["0", "-1", "500m", 1.5, None, "", "two", "8193", [1], {}])
def test_what_is_wrong_with_a_capacity_is_told_with_the_device(value: object) -> None:
    consumed = {"consumedCapacity": {"dra.cpu/cpu": value}}
    with pytest.raises(ClaimError) as caught:
        parse_claim(manifest(result(), result("cpudevsocket001") | consumed), UID)
    path = f"{RESULTS}[1].consumedCapacity[dra.cpu/cpu]"
    assert str(caught.value).startswith((f"device cpudevsocket001: {path} is ", f"device cpudevsocket001: {path}: "))
    with pytest.raises(ClaimError) as caught:
        parse_claim(manifest(result() | {"consumedCapacity": [1]}), UID)
    expected = f"device cpudevnuma000: {RESULTS}[0].consumedCapacity is a list, not an object"
    assert str(caught.value) == expected


def test_a_uid_that_would_be_a_path_is_refused() -> None:
    with pytest.raises(ClaimError, match="is no UUID"):
        parse_claim(manifest(claim_uid="../../etc/passwd"), "../../etc/passwd")


@pytest.mark.parametrize("claim", [None, [], "claim", 3, {}])
def test_what_is_no_object_is_refused(claim: object) -> None:
    with pytest.raises(ClaimError):
        parse_claim(claim, UID)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def paths(value: object, prefix: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield prefix
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in entries:
        yield from paths(inner, (*prefix, key))


WHOLE = manifest(result(shareID=uid(9), adminAccess=False), pod=uid(7))
WHOLE["metadata"]["annotations"] = {"resource.kubernetes.io/pod-claim-name": "mine"}
WHOLE["status"]["allocation"]["devices"]["config"] = [config({"x": 1}, requests=["cpus"])]


@given(st.sampled_from([path for path in paths(WHOLE) if path]), JSON)
def test_any_value_in_any_place_gives_a_claim_or_a_claim_error(path: tuple[Any, ...], value: object) -> None:
    claim = copy.deepcopy(WHOLE)
    inner: Any = claim
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    assert outcome(claim) in (UID, "refused")


def outcome(claim: object) -> str:
    try:
        return parse_claim(claim, UID).uid
    except ClaimError:
        return "refused"
