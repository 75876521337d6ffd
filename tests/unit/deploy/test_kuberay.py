"""The Kubernetes manifests hold to published schemas, and run nothing as root."""

from __future__ import annotations

import copy
import gzip
import shutil
import subprocess
from functools import cache
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.conftest import TABLES

from .files import DEPLOY, ROOT, SAFE, document, documents

KUBERNETES = "1.31"
OVERLAYS = ("base", "overlays/gpu", "overlays/one-node")
POOL_OF_GPUS = yaml.safe_load(document("kuberay", "overlays", "gpu", "pool.yaml")[0]["value"])
SERVE = yaml.safe_load(document("kuberay", "base", "rayservice.yaml")["spec"]["serveConfigV2"])


@cache
def rendered(overlay: str) -> dict[str, Any]:
    """What kubectl would apply, by kind."""
    if shutil.which("kubectl") is None and overlay == "base":
        files = ("store.yaml", "rayservice.yaml")
        found = [each for file in files for each in documents("kuberay", "base", file)]
    elif shutil.which("kubectl") is None:
        pytest.skip(f"{overlay} is NOT TESTED: kubectl renders it")
    else:
        command = ["kubectl", "kustomize", str(DEPLOY / "kuberay" / overlay)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        found = list(yaml.safe_load_all(ran.stdout))
    return {each["kind"]: each for each in found}


@pytest.fixture(params=OVERLAYS)
def kinds(request: pytest.FixtureRequest) -> dict[str, Any]:
    return rendered(request.param)


@pytest.fixture
def groups(kinds: dict[str, Any]) -> list[dict[str, Any]]:
    cluster = kinds["RayService"]["spec"]["rayClusterConfig"]
    return [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]


@pytest.fixture(scope="module")
def schema() -> Any:
    """KubeRay's own, closed: a misspelt field is found."""
    with gzip.open(TABLES.parent / "schemas" / "ray.io_rayservices.yaml.gz") as file:
        definition = yaml.safe_load(file)
    (version,) = [each for each in definition["spec"]["versions"] if each["name"] == "v1"]
    return _closed(version["schema"]["openAPIV3Schema"])


def _closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(each) for name, each in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        closed.setdefault("additionalProperties", False)
    if schema.get("x-kubernetes-int-or-string"):
        closed["type"] = ["integer", "string"]
    return closed


@pytest.mark.shared_data
def test_the_rayservice_holds_to_kuberays_definition(kinds: dict[str, Any], schema: Any) -> None:
    jsonschema.validate(kinds["RayService"], schema)


@pytest.mark.shared_data
@pytest.mark.parametrize(
    "wrong", [{"rayversion": "2.60.0"}, {"workerGroupSpecs": [{"minReplicas": "1"}]}], ids=str
)
def test_the_definition_finds_what_is_wrong(schema: Any, wrong: dict[str, Any]) -> None:
    service = rendered("base")["RayService"]
    cluster = {**service["spec"]["rayClusterConfig"], **wrong}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**service, "spec": {"rayClusterConfig": cluster}}, schema)


def test_everything_else_holds_to_kubernetes_schema(
    kinds: dict[str, Any], groups: list[dict[str, Any]]
) -> None:
    assert set(kinds) == {"PersistentVolumeClaim", "NetworkPolicy", "RayService"}
    pods = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "pod", **group["template"]["metadata"]},
            "spec": group["template"]["spec"],
        }
        for group in groups
    ]
    for each in (kinds["PersistentVolumeClaim"], kinds["NetworkPolicy"], *pods):
        kubernetes_validate.validate(each, KUBERNETES, strict=True)


def test_pods_report_to_nobody_and_import_nothing_from_where_they_start(
    groups: list[dict[str, Any]],
) -> None:
    for group in groups:
        for container in group["template"]["spec"]["containers"]:
            told = {each["name"]: each.get("value") for each in container["env"]}
            assert told.items() >= SAFE.items()


def test_pods_mount_what_is_claimed_and_the_policy_is_for_them(
    kinds: dict[str, Any], groups: list[dict[str, Any]]
) -> None:
    claim = kinds["PersistentVolumeClaim"]["metadata"]["name"]
    (home,) = {application["args"]["home"] for application in SERVE["applications"]}
    for group in groups:
        spec = group["template"]["spec"]
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        (container,) = spec["containers"]
        (name,) = [m["name"] for m in container["volumeMounts"] if m["mountPath"] == home]
        assert volumes[name]["persistentVolumeClaim"]["claimName"] == claim
        policy = kinds["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"]
        assert policy.items() <= group["template"]["metadata"]["labels"].items()


def test_nothing_runs_as_root_or_without_bounds(groups: list[dict[str, Any]]) -> None:
    for group in groups:
        spec = group["template"]["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] >= 10000
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        for container in spec["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
            assert {"cpu", "memory"} <= container["resources"]["limits"].keys()


def test_secrets_come_from_secrets_and_ray_asks_for_a_token(
    kinds: dict[str, Any], groups: list[dict[str, Any]]
) -> None:
    assert kinds["RayService"]["spec"]["rayClusterConfig"]["authOptions"] == {"mode": "token"}
    for group in groups:
        (container,) = group["template"]["spec"]["containers"]
        (url,) = [each for each in container["env"] if each["name"] == "MODELLESS_STORE_URL"]
        assert url["valueFrom"] == {"secretKeyRef": {"name": "modelless-store", "key": "url"}}


def test_pools_ask_for_labels_that_a_group_has_with_room_for_a_worker(
    kinds: dict[str, Any], groups: list[dict[str, Any]]
) -> None:
    serve = yaml.safe_load(kinds["RayService"]["spec"]["serveConfigV2"])
    if len(groups) == 3:  # with GPUs: the pool that is added once it is profiled
        serve = POOL_OF_GPUS
    settings = serve["applications"][0]["args"]["settings"]
    for wanted in (*settings["pools"], settings["gateways"]):
        (group,) = [g for g in groups if wanted["labels"].items() <= g.get("labels", {}).items()]
        (container,) = group["template"]["spec"]["containers"]
        limits = container["resources"]["limits"]
        resources = wanted.get("resources", {})
        assert resources.get("CPU", 0) <= int(limits["cpu"])
        assert resources.get("GPU", 0) <= int(limits.get("nvidia.com/gpu", 0))


def test_the_pool_of_gpus_is_all_that_its_overlay_adds() -> None:
    added = copy.deepcopy(POOL_OF_GPUS)
    for application in added["applications"]:  # of which all share the settings
        del application["args"]["settings"]["pools"][1:]
    del added["applications"][-1]
    assert added == SERVE


def test_ray_is_the_version_that_is_installed(pyproject: dict[str, Any]) -> None:
    version = rendered("base")["RayService"]["spec"]["rayClusterConfig"]["rayVersion"]
    assert f"ray[serve]=={version}" in pyproject["project"]["dependencies"]


@pytest.fixture
def pyproject() -> dict[str, Any]:
    import tomllib

    return tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Ray Serve's own use of pydantic
@pytest.mark.parametrize(
    "config", [SERVE, POOL_OF_GPUS, document("serve", "config.yaml")], ids=["ray", "gpu", "serve"]
)
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
