"""The lives of pods: containers that are killed and crash, init and sidecar containers, pods that come by the dozen."""

from __future__ import annotations

import pytest

from nri_cpu.cpuset import CPUSet
from tests.cluster.manifests import Manifest, claim, container, deployment, pod, pod_spec, request, simple, template
from tests.cluster.scenario import Scenario, container_status, has_ended, is_ready, is_running

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

TELLS = "grep ^Cpus_allowed_list: /proc/self/status"


def crashes_again(seen: int, now: Manifest) -> bool:
    status = container_status(now, "main")
    return "CrashLoopBackOff" in str(status["state"]) and int(status["restartCount"]) > seen


def test_shared_containers_have_left_a_claims_cpus_before_its_container_runs_its_first_instruction(
    scenario: Scenario,
) -> None:
    scenario.run(pod("shared", *(container(name) for name in "abc")))
    pids = [scenario.pid("shared", name) for name in "abc"]
    # It sees the others: its first program tells where it is and where they are.
    files = " ".join(f"/proc/{pid}/status" for pid in ("self", *pids))
    looks = ["sh", "-c", f"grep -h ^Cpus_allowed_list: {files}; exec /bin/first"]
    for name, cpus in (("small", 1), ("large", 4)):
        before = scenario.check().pool
        scenario.run(
            claim(name, request(cpus=cpus)),
            pod(name, container("main", name, command=looks), claims=[name], hostPID=True),
        )
        own, *others = (CPUSet.parse(line.partition(":")[2]) for line in scenario.log(name).splitlines()[:4])
        assert own == scenario.cpus(name) <= before
        assert others == [before - own] * 3


@pytest.mark.fault("A17", "B2", "I4")
def test_a_container_that_is_killed_or_crashes_comes_back_on_its_cpus(scenario: Scenario) -> None:
    scenario.run(*simple("app", 2))
    scenario.apply(
        claim("loop", request(cpus=2)),
        pod("loop", container("main", "loop", command=["sh", "-c", f"{TELLS}; exit 1"]), claims=["loop"]),
    )
    app = scenario.cpus("app")
    scenario.kill("app")
    assert scenario.first("app") == scenario.cpus("app") == app
    # Both processes start anew while no container of the claim lives, and others come for CPUs.
    crashed = scenario.pod("loop", lambda now: crashes_again(0, now))
    loop = scenario.cpus("loop")
    assert scenario.product.plugin
    scenario.product.plugin.kill()
    scenario.product.start_plugin()
    scenario.stage.companion()
    scenario.run(*simple("rival", 4))
    assert scenario.cpus("rival").isdisjoint(loop)
    scenario.pod("loop", lambda now: crashes_again(container_status(crashed, "main")["restartCount"], now))
    assert scenario.first("loop") == scenario.cpus("loop") == loop
    scenario.check()


@pytest.mark.fault("I1", "I2", "I3", "I5", "I6")
def test_init_sidecar_and_ended_containers_keep_their_claims_until_the_pod_ends(scenario: Scenario) -> None:
    names = ("init", "side", "main", "done")
    ends = ["sh", "-c", f"{TELLS}; exit 0"]
    scenario.apply(
        *(claim(name, request(cpus=2)) for name in names),
        pod(
            "life",
            container("main", "main"),
            container("done", "done", command=ends),
            initContainers=[
                container("init", "init", command=ends),
                container("side", "side", restartPolicy="Always"),
            ],
            restartPolicy="OnFailure",
            claims=names,
        ),
    )
    scenario.pod("life", lambda now: is_running(now, "main") and has_ended(now, "done"))
    for name in names:
        assert scenario.first("life", name) == scenario.cpus(name)
    assert len(scenario.cpus(*names)) == 8
    facts = scenario.check()
    assert {one.name for one in facts.exclusive} == {"side", "main"}
    # Nobody gets the CPUs of the containers that have ended.
    scenario.run(*simple("rival", 4))
    assert scenario.cpus("rival").isdisjoint(scenario.cpus(*names))
    scenario.delete("life")
    assert not any(map(scenario.prepared, names))
    scenario.check()


@pytest.mark.fault("I2")
def test_a_deployment_of_a_template_grows_and_shrinks_and_each_pod_has_its_own_cpus(scenario: Scenario) -> None:
    spec = pod_spec(container("main", "cpus"), templates=["cpus"])
    scenario.apply(template("cpus", request(cpus=2)), deployment("web", 1, spec))

    def scaled(count: int) -> list[str]:
        scenario.apply(deployment("web", count, spec))
        scenario.api.wait(
            "Deployment",
            "web",
            lambda now: (
                now["status"].get("observedGeneration") == now["metadata"]["generation"]
                and now["status"].get("readyReplicas", 0) == now["status"].get("replicas", 0) == count
            ),
            scenario.namespace,
        )
        for one in scenario.pods(app="web"):
            if one["metadata"].get("deletionTimestamp"):
                scenario.api.wait_gone("Pod", one["metadata"]["name"], scenario.namespace)
        return [one["metadata"]["name"] for one in scenario.pods(app="web") if is_ready(one)]

    for count in (1, 4, 2, 3, 0):
        pods = scaled(count)
        assert len(pods) == count
        claims = [scenario.claim_of(name, "cpus") for name in pods]
        assert len(scenario.cpus(*claims)) == 2 * count
        for name, own in zip(pods, claims, strict=True):
            assert scenario.first(name) == scenario.cpus(own)
        assert len(scenario.check().records) == count
