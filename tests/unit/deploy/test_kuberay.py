"""The Kubernetes manifests hold to published schemas, and run nothing as root."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from .files import ROOT, SAFE, document, documents

KUBERNETES = "1.31"
SERVICE = document("kuberay", "rayservice.yaml")
CLUSTER = SERVICE["spec"]["rayClusterConfig"]
GROUPS = [CLUSTER["headGroupSpec"], *CLUSTER["workerGroupSpecs"]]
SERVE = yaml.safe_load(SERVICE["spec"]["serveConfigV2"])


def group_name(group: dict[str, Any]) -> str:
    return str(group.get("groupName", "head"))


@pytest.fixture
def schema() -> Any:
    return yaml.safe_load(Path(__file__).with_name("rayservice.schema.yaml").read_text())


def test_the_rayservice_holds_to_kuberays_fields(schema: Any) -> None:
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(SERVICE, schema)


def test_the_schema_finds_what_is_misspelt(schema: Any) -> None:
    for wrong in (
        {**CLUSTER, "rayversion": "2.60.0"},
        {**CLUSTER, "headGroupSpec": {**GROUPS[0], "rayStartParams": {"labels": "a=b"}}},
        {**CLUSTER, "workerGroupSpecs": [{**GROUPS[1], "minReplicas": "1"}]},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**SERVICE, "spec": {"rayClusterConfig": wrong}}, schema)


@pytest.mark.parametrize("group", GROUPS, ids=group_name)
def test_pods_hold_to_kubernetes_schema(group: dict[str, Any]) -> None:
    template = group["template"]
    metadata = {"name": "pod", **template["metadata"]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
    kubernetes_validate.validate(pod, KUBERNETES, strict=True)


@pytest.mark.parametrize("group", GROUPS, ids=group_name)
def test_nothing_in_a_pod_reports_to_anybody_or_imports_from_where_it_starts(
    group: dict[str, Any],
) -> None:
    for container in group["template"]["spec"]["containers"]:
        told = {each["name"]: each.get("value") for each in container["env"]}
        assert told.items() >= SAFE.items()


def test_pods_mount_what_is_claimed() -> None:
    kinds = {each["kind"]: each for each in documents("kuberay", "store.yaml")}
    assert set(kinds) == {"PersistentVolumeClaim", "NetworkPolicy"}
    for each in kinds.values():
        kubernetes_validate.validate(each, KUBERNETES, strict=True)
    claim = kinds["PersistentVolumeClaim"]["metadata"]["name"]
    (home,) = {application["args"]["home"] for application in SERVE["applications"]}
    for group in GROUPS:
        spec = group["template"]["spec"]
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        (container,) = spec["containers"]
        (name,) = [m["name"] for m in container["volumeMounts"] if m["mountPath"] == home]
        assert volumes[name]["persistentVolumeClaim"]["claimName"] == claim
        policy = kinds["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"]
        assert policy.items() <= group["template"]["metadata"]["labels"].items()


@pytest.mark.parametrize("group", GROUPS, ids=group_name)
def test_nothing_runs_as_root_or_without_bounds(group: dict[str, Any]) -> None:
    spec = group["template"]["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] >= 10000
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    for container in spec["containers"]:
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
        assert {"cpu", "memory"} <= container["resources"]["limits"].keys()


def test_pools_ask_for_labels_that_a_group_has_with_room_for_a_worker() -> None:
    settings = SERVE["applications"][0]["args"]["settings"]
    labelled = [(group.get("labels", {}), group) for group in GROUPS]
    for wanted in (*settings["pools"], settings["gateways"]):
        (group,) = [group for has, group in labelled if wanted["labels"].items() <= has.items()]
        (container,) = group["template"]["spec"]["containers"]
        limits = container["resources"]["limits"]
        resources = wanted.get("resources", {})
        assert resources.get("CPU", 0) <= int(limits["cpu"])
        assert resources.get("GPU", 0) <= int(limits.get("nvidia.com/gpu", 0))


def test_ray_is_the_version_that_is_installed(pyproject: dict[str, Any]) -> None:
    assert f"ray[serve]=={CLUSTER['rayVersion']}" in pyproject["project"]["dependencies"]


@pytest.fixture
def pyproject() -> dict[str, Any]:
    import tomllib

    return tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Ray Serve's own use of pydantic
@pytest.mark.parametrize("config", [SERVE, document("serve", "config.yaml")], ids=["ray", "serve"])
def test_serve_takes_the_config_and_the_builders_their_arguments(config: Any) -> None:
    from ray.serve.schema import ServeDeploySchema

    from modelless.controller.live import application
    from modelless.controller.live.cluster import serve_app

    parsed = ServeDeploySchema.model_validate(config)
    first, *pools = parsed.applications
    assert first.name == serve_app.GATEWAY_APP
    assert first.import_path == f"{application.__name__}:{application.gateways.__name__}"
    settings = application.Arguments.model_validate(first.args).settings
    assert settings.http.host == config["http_options"]["host"] or "http" not in first.args
    for pool in pools:
        arguments = application.PoolArguments.model_validate(pool.args)
        assert arguments.settings == settings
        assert pool.name == serve_app.pool_app_name(arguments.device_class)
        assert pool.import_path == f"{application.__name__}:{application.pool.__name__}"
        assert pool.route_prefix is None
        assert pool.external_scaler_enabled
    assert [pool.args["device_class"] for pool in pools] == [
        pool.device_class for pool in settings.pools
    ]
